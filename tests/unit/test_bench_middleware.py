"""The benchmark of middleware runs and says what it promises to say; how fast anything is, no test can know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.middleware.__main__ import TARGETS_US, main

if TYPE_CHECKING:
    import pytest


def test_a_tiny_run_reports_what_each_limit_adds(capsys: pytest.CaptureFixture[str]) -> None:
    added = main(["--rounds", "1", "--requests", "2"])
    assert added["bare ASGI"] == added["bare FastAPI"] == 0
    assert set(TARGETS_US) < set(added)
    printed = capsys.readouterr().out
    assert all(name in printed for name in added)
    assert "times less than" in printed
