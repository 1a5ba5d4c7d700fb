"""Slices of load by wrk, and what they say."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.servers.process import HOST

from .contenders import LOAD_CORE

if TYPE_CHECKING:
    from pathlib import Path

    from .contenders import Running

CONNECTIONS = 64
KEYS = 10_000
BATCH = 100
CHECK = f"""\
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
local at = 0
request = function()
  at = (at + 1) % {KEYS}
  return wrk.format(nil, nil, nil, '{{"key":"user:' .. at .. '","limit":1000,"window":60}}')
end
"""
MANY = f"""\
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
local bodies = {{}}
for first = 0, {KEYS} - {BATCH}, {BATCH} do
  local checks = {{}}
  for at = first, first + {BATCH} - 1 do
    checks[#checks + 1] = '{{"key":"user:' .. at .. '","limit":1000,"window":60}}'
  end
  bodies[#bodies + 1] = '{{"checks":[' .. table.concat(checks, ",") .. ']}}'
end
local at = 0
request = function()
  at = at % #bodies + 1
  return wrk.format(nil, nil, nil, bodies[at])
end
"""
UNITS_MS = {"us": 0.001, "ms": 1.0, "s": 1_000.0}


@dataclass(frozen=True, slots=True)
class Slice:
    """What one slice of load brought."""

    per_second: float
    p50_ms: float
    p99_ms: float
    failed: int
    cpu_us: float
    """Of the server, for one request."""


def write_scripts(folder: Path) -> None:
    """Put wrk's scripts where it finds them."""
    (folder / "check.lua").write_text(CHECK)
    (folder / "batch.lua").write_text(MANY)


def run_wrk(contender: Running, folder: Path, *, batch: bool, seconds: float) -> Slice:
    """One slice of load."""
    wrk, taskset = shutil.which("wrk"), shutil.which("taskset")
    assert wrk is not None
    script, path = ("batch.lua", "/check/batch") if batch else ("check.lua", "/check")
    command = [
        *([taskset, "-c", str(LOAD_CORE)] if taskset else []),
        *(
            wrk,
            "-t1",
            f"-c{CONNECTIONS}",
            f"-d{seconds:g}s",
            "--latency",
            "-s",
            str(folder / script),
        ),
        f"http://{HOST}:{contender.port}{path}",
    ]
    before = contender.cpu_seconds()
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    return parse(text, contender.cpu_seconds() - before)


def parse(text: str, cpu_seconds: float) -> Slice:
    """Read wrk's report."""
    requests = int(_found(r"(\d+) requests in", text))
    failed = sum(map(int, re.findall(r"(?:connect|read|write|timeout) (\d+)", text)))
    failed += int(_found(r"Non-2xx or 3xx responses: (\d+)", text, "0"))
    return Slice(
        float(_found(r"Requests/sec:\s+([\d.]+)", text)),
        _latency("50%", text),
        _latency("99%", text),
        failed,
        cpu_seconds * 1e6 / max(1, requests),
    )


def _latency(percent: str, text: str) -> float:
    found = re.search(rf"{percent}\s+([\d.]+)(us|ms|s)", text)
    assert found is not None
    return float(found[1]) * UNITS_MS[found[2]]


def _found(pattern: str, text: str, default: str | None = None) -> str:
    found = re.search(pattern, text)
    if found is None:
        assert default is not None, text
        return default
    return found[1]
