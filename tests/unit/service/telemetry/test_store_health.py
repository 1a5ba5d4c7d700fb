"""What counts as an outage of the store."""

from __future__ import annotations

from headgate.errors import EngineBusy, EngineTimeout
from headgate.service.telemetry.store_health import StoreHealth


def test_a_failed_call_begins_an_outage_but_not_one_that_was_never_sent() -> None:
    store = StoreHealth()
    store.failed(EngineBusy("10 requests already wait", transient=True))
    assert (store.up, store.outages, store.last_error) == (True, 0, "")
    store.failed(EngineTimeout("no answer", transient=True))
    assert (store.up, store.outages, store.last_error) == (False, 1, "no answer")
