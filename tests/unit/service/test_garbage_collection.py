"""The collector of the service's own process; the library leaves that of its host alone."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headgate.service.garbage_collection import MANY, without_collection

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def _collector_as_before() -> Iterator[None]:
    """On, and with the tests themselves frozen, as conftest.py leaves it."""
    yield
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("_collector_as_before")
def test_many_new_objects_are_excluded_from_collection() -> None:
    gc.unfreeze()
    with without_collection():
        assert not gc.isenabled()
        much = [[number] for number in range(MANY + 1_000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() > len(much)


@pytest.mark.usefixtures("_collector_as_before")
def test_few_new_objects_are_left_to_the_collector() -> None:
    gc.unfreeze()
    gc.collect()
    with without_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("_collector_as_before")
def test_a_collector_that_was_off_stays_off_also_after_an_error() -> None:
    gc.disable()
    with pytest.raises(RuntimeError), without_collection():
        raise RuntimeError
    assert not gc.isenabled()


FOLLOW = """
import gc, sys
from headgate import Limiter

gc.callbacks.append(lambda phase, info: None)
before = gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()
seen = set()
sys.setprofile(lambda frame, event, arg: seen.add(getattr(arg, "__qualname__", "")) if event == "c_call"
               and getattr(arg, "__module__", "") == "gc" else None)
limiter = Limiter(rules=sys.argv[1])
limiter.close()
sys.setprofile(None)
assert (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()) == before, gc.get_freeze_count()
assert not seen, seen
"""


def test_a_limiter_that_follows_large_rules_does_not_touch_the_collector_of_its_host(
    tmp_path: Path,
) -> None:
    """Neither for good nor for a while: cycles of a host whose collector is frozen are never found."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "rules:\n"
        + "".join(
            f"  - {{rule_id: r{n}, match: {{path_pattern: /p{n}}}, identifier: ip_address, rate: {n + 1}/minute}}\n"
            for n in range(5_000)
        ),
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-c", FOLLOW, str(rules)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_only_the_service_configures_the_collector() -> None:
    """In the sources, too."""
    root = Path(sys.modules["headgate"].__file__ or "").parent
    speaking = {
        str(path.relative_to(root).parts[0])
        for path in root.rglob("*.py")
        if "import gc\n" in path.read_text(encoding="utf-8")
    }
    assert speaking == {"service"}
