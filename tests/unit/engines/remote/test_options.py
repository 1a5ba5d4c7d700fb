"""What a URL of nodes says, and what it may not say."""

from __future__ import annotations

import pytest

from headgate import ConfigError, Limiter
from headgate.engines.registry import kind_of
from headgate.engines.remote.options import parse_url


def test_a_url_names_nodes_a_token_and_options() -> None:
    options = parse_url("headgate://:hg_%2Fx@one:7000,[::1]:7001?deadline=0.5&max_batch=64")
    assert options.addresses == (("one", 7_000), ("::1", 7_001))
    assert (options.password, options.deadline, options.max_batch) == ("hg_/x", 0.5, 64)
    assert options.tls is None
    assert "hg_" not in repr(options)


def test_a_deadline_is_longer_than_that_of_the_nodes_own_store() -> None:
    assert parse_url("headgate://one:1").deadline == 1.5


def test_headgates_is_tls() -> None:
    assert parse_url("headgates://one:7000").tls is not None


@pytest.mark.parametrize(
    "url",
    [
        "headgate://",
        "headgate://one",
        "headgate://one:0",
        "headgate://one:70000",
        "headgate://one:x",
        "headgate://one:1,",
        "headgate://one:1/0",
        "headgate://one:1#x",
        "headgate://:a@b@one:1?x=@",
        "headgate://one:1?secret=x",
        "headgate://one:1?max_batch=100000",
        "headgate://one:1?ca_file=x.pem",
        "headgates://one:1?ca_file=/no/such/file",
        "headgate://[one:1",
    ],
)
def test_a_url_that_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        Limiter(url)


def test_the_token_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_url("headgate://:hg_secret@one")
    assert "hg_secret" not in str(refused.value)


def test_it_is_described_as_shared_by_processes() -> None:
    kind = kind_of("headgate://one:1")
    described = kind.describe("headgate://one:1?deny_cache=no")
    assert (kind.shared, described.round_trips, described.deny_cache) == (True, True, False)
