"""What stays behind of a million new keys, limits, windows, rules and heads: how much a process grows.

    python -m bench.bounds.memory "new limits" 1000000

Each scenario gets a process of its own, because memory that one has freed would be a present to the next. The resident
set is looked at when half of them have come, and at the end: what is bounded has stopped growing by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from headgate import AsyncLimiter, Charge, EngineError, Limiter, Rate
from headgate.service.http.endpoints import Endpoints
from headgate.service.node import Node
from headgate.service.settings import Settings
from tests.servers.process import HOST
from tests.servers.redis import standalone
from tests.service.running import service

MB: Final = 1_048_576
CHUNK: Final = 1_000
ABORT_MB: Final = 1_500.0
"""Nobody needs to see more to believe it."""
LATE_MB: Final = 8.0
"""What may be added by the second half where nothing is meant to stay: an allocator is never quite still."""

BOUND_MB: Final = 96.0
"""What the 10,000 bound limits may take that an awaiting limiter on Redis keeps: each has the hooks of its guards."""

Use: TypeAlias = Callable[[Sequence[int]], None]
"""Uses the things with these numbers, once each."""


class Scenario(NamedTuple):
    """Something of which a caller can make ever more."""

    use: Callable[[], contextlib.AbstractContextManager[tuple[Use, int]]]
    """Opens what is used, and says in which process it lives."""
    bound_mb: float = 64.0
    """What all of them may leave behind."""
    share: float = 1.0
    """How many of the million are tried: some take long, some are large."""
    stays: bool = False
    """Whether counts are meant to stay, up to the bound; then the second half may add as much as the first."""


@dataclass(frozen=True)
class Growth:
    """What was seen."""

    scenario: str
    count: int
    half_mb: float
    end_mb: float
    bound_mb: float
    stays: bool

    @property
    def holds(self) -> bool:
        """Whether it stays within its bound, and has stopped growing where it should have."""
        late = self.end_mb - self.half_mb
        return self.end_mb <= self.bound_mb and (self.stays or late <= LATE_MB)

    def as_text(self) -> str:
        """One line."""
        verdict = "" if self.holds else "   TOO MUCH"
        return (
            f"{self.scenario:44} {self.count:9,}  {self.half_mb:8.1f} MB at half, {self.end_mb:8.1f} MB at the end, "
            f"{self.bound_mb:.0f} allowed{verdict}"
        )


def here(use: Use) -> tuple[Use, int]:
    """It lives in this process."""
    return use, 0


def each(limiter: Limiter, one: Callable[[Limiter, int], object]) -> Use:
    """One call for each number."""

    def use(numbers: Sequence[int]) -> None:
        for number in numbers:
            one(limiter, number)

    return use


@contextlib.contextmanager
def library(one: Callable[[Limiter, int], object]) -> Iterator[tuple[Use, int]]:
    """A limiter in memory."""
    with Limiter() as limiter:
        yield here(each(limiter, one))


@contextlib.contextmanager
def checks(body: Callable[[int], str], path: str = "check") -> Iterator[tuple[Use, int]]:
    """The endpoints of a service that counts in memory, without a socket."""
    node = Node(Settings())
    endpoint = getattr(Endpoints(node), path)
    with asyncio.Runner() as runner:
        runner.run(node.start())

        async def use(numbers: Sequence[int]) -> None:
            for number in numbers:
                endpoint(body(number).encode(), False)  # noqa: FBT003
            await asyncio.sleep(0)

        yield here(lambda numbers: runner.run(use(numbers)))
        runner.run(node.stop())


@contextlib.contextmanager
def on_redis(
    one: Callable[[AsyncLimiter, int], Any], options: str = ""
) -> Iterator[tuple[Use, int]]:
    """An awaiting limiter on a real Redis; many calls at a time, as in a service."""
    with standalone("redis-7.0") as redis, asyncio.Runner() as runner:
        limiter = AsyncLimiter(f"{redis.url}?deadline=10{options}")

        async def use(numbers: Sequence[int]) -> None:
            await asyncio.gather(*(one(limiter, number) for number in numbers))

        yield here(lambda numbers: runner.run(use(numbers)))
        runner.run(limiter.aclose())


@contextlib.contextmanager
def on_redis_blocking(one: Callable[[Limiter, int], object]) -> Iterator[tuple[Use, int]]:
    """A blocking limiter on a real Redis."""
    with standalone("redis-7.0") as redis, Limiter(redis.url) as limiter:
        yield here(each(limiter, one))


@contextlib.contextmanager
def new_heads() -> Iterator[tuple[Use, int]]:
    """A service of its own, asked over one connection with a head that is new each time."""
    with service() as running, socket.create_connection((HOST, running.port)) as wire:
        body = b'{"key":"k"}'
        answers = wire.makefile("rb")

        def use(numbers: Sequence[int]) -> None:
            for at in range(0, len(numbers), 50):
                some = numbers[at : at + 50]
                wire.sendall(
                    b"".join(
                        b"POST /check HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                        b"X-Request-Id: %d\r\nContent-Length: %d\r\n\r\n%b"
                        % (number, len(body), body)
                        for number in some
                    )
                )
                for _ in some:
                    length = 0
                    while (line := answers.readline()) != b"\r\n":
                        if line.lower().startswith(b"content-length:"):
                            length = int(line[15:])
                    answers.read(length)

        yield use, running.pid


async def denied(limiter: AsyncLimiter, number: int) -> None:
    """A denial that the deny cache would like to keep."""
    await limiter.hit(f"denied:{number}", "1/hour", cost=1)
    await limiter.hit(f"denied:{number}", "1/hour", cost=1)


def spread_window(number: int) -> Rate:
    """A window that nobody else has, of a minute to some twenty."""
    return Rate(5, window=60 + number / 1_000)


async def decide(limiter: AsyncLimiter, number: int) -> None:
    """One request that a new rule is charged for."""
    with contextlib.suppress(EngineError):
        await limiter.decide([Charge("k", "5/second", rule=f"rule:{number}")])


SCENARIOS: Final[dict[str, Scenario]] = {
    "new keys": Scenario(
        lambda: library(lambda limiter, n: limiter.hit(f"user:{n}", "100/minute")), 400, stays=True
    ),
    "new keys of 8 KB": Scenario(
        lambda: library(lambda limiter, n: limiter.hit(f"{n:08000}", "100/minute")),
        700,
        0.1,
        stays=True,
    ),
    "new limits": Scenario(lambda: library(lambda limiter, n: limiter.hit("k", f"{n + 1}/hour"))),
    "new windows": Scenario(
        lambda: library(lambda limiter, n: limiter.hit("k", spread_window(n))), 700, stays=True
    ),
    "new rules": Scenario(
        lambda: library(lambda limiter, n: limiter.decide([Charge("k", "5/minute", rule=f"r{n}")])),
        700,
        stays=True,
    ),
    "new bound limits": Scenario(
        lambda: library(lambda limiter, n: limiter.limit(f"k{n}", f"{n + 1}/hour").hit()),
        400,
        stays=True,
    ),
    "service: new keys": Scenario(
        lambda: checks(lambda n: f'{{"key":"user:{n}"}}'), 450, stays=True
    ),
    # Each is kept in its three algorithms while it is known: an adaptive limit may change between them at any time.
    "service: new limits": Scenario(
        lambda: checks(lambda n: f'{{"key":"k","limit":{n + 1}}}'), 160
    ),
    "service: new windows": Scenario(
        lambda: checks(lambda n: f'{{"key":"k","window":{60 + n / 1_000}}}'), 700, stays=True
    ),
    "service: new keys that are denied": Scenario(
        lambda: checks(lambda n: f'{{"key":"user:{n}","limit":1,"window":3600,"cost":2}}')
    ),
    "service: new unknown fields": Scenario(lambda: checks(lambda n: f'{{"key":"k","x{n}":1}}')),
    "service: new addresses": Scenario(
        lambda: checks(
            lambda n: (
                f'{{"ip":"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}","host":"h{n}","path":"/p/{n}"}}'
            ),
            "decide",
        ),
        450,
        stays=True,
    ),
    "service: new heads": Scenario(new_heads),
    "redis: new keys": Scenario(
        lambda: on_redis(lambda limiter, n: limiter.hit(f"user:{n}", "100/second"))
    ),
    "redis: new limits": Scenario(
        lambda: on_redis(lambda limiter, n: limiter.hit("k", f"{n + 1}/second")), BOUND_MB
    ),
    "redis: new windows": Scenario(
        lambda: on_redis(lambda limiter, n: limiter.hit("k", Rate(5, window=1 + n / 1_000_000))),
        BOUND_MB,
    ),
    "redis: new rules": Scenario(lambda: on_redis(decide), share=0.5),
    "redis: new keys that are denied": Scenario(lambda: on_redis(denied), 96),
    "redis, blocking: new limits": Scenario(
        lambda: on_redis_blocking(lambda limiter, n: limiter.hit("k", f"{n + 1}/second")), share=0.2
    ),
    "redis, blocking: new rules": Scenario(
        lambda: on_redis_blocking(
            lambda limiter, n: limiter.decide([Charge("k", "5/second", rule=f"r{n}")])
        ),
        share=0.2,
    ),
    "redis, blocking: new windows": Scenario(
        lambda: on_redis_blocking(
            lambda limiter, n: limiter.hit("k", Rate(5, window=1 + n / 1_000_000))
        ),
        share=0.2,
    ),
}


def weigh(name: str, count: int) -> Growth:
    """Use `count` of them in this process."""
    scenario = SCENARIOS[name]
    count = max(2 * CHUNK, int(count * scenario.share))
    with scenario.use() as (use, pid):
        warm = range(count, count + 2 * CHUNK)
        for start in range(0, len(warm), CHUNK):
            use(warm[start : start + CHUNK])
        before = resident_mb(pid)
        half = end = 0.0
        for start in range(0, count, CHUNK):
            use(range(start, start + CHUNK))
            if start + CHUNK == count // 2 // CHUNK * CHUNK:
                half = resident_mb(pid) - before
            if start % (20 * CHUNK) == 0 and resident_mb(pid) - before > ABORT_MB:
                break
        end = resident_mb(pid) - before
    return Growth(name, count, half, end, scenario.bound_mb, scenario.stays)


def resident_mb(pid: int = 0) -> float:
    """What a process holds; this one, if none is named."""
    import resource  # noqa: PLC0415 - there is none on Windows, where nothing is weighed

    gc.collect()
    pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / MB


def growth(name: str, count: int) -> Growth:
    """Ask a fresh process."""
    command = [sys.executable, "-m", "bench.bounds.memory", name, str(count)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    return Growth(**json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    print(json.dumps(vars(weigh(sys.argv[1], int(sys.argv[2])))))
