"""What the recorder counts, on a clock that stands still."""

import pytest

from headgate import Charge, Limiter, MemoryEngine
from headgate.algorithms import NEVER, SlidingWindow
from headgate.board import Block, Totals
from headgate.board.shared_lists import read_blocks, read_top
from headgate.board.sketch import TopKey
from headgate.charge_kind import ChargeKind
from headgate.clock import ManualClock
from headgate.decision import Context, Decision
from headgate.errors import EngineError
from headgate.service.telemetry import denied_keys as blocks_module
from headgate.service.telemetry.recorder import BUCKETS_NS, FOLD_AT, MAX_SERIES, Recorder, Series

SECOND_US = 1_000_000
LIMIT = SlidingWindow(5, 60 * SECOND_US)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def recorder(clock: ManualClock) -> Recorder:
    return Recorder(clock)


@pytest.fixture
def limiter(clock: ManualClock) -> Limiter:
    return Limiter(clock=clock)


def decision(
    key: str = "k",
    *,
    allowed: bool = True,
    remaining: int = 0,
    retry_after_us: int = 0,
    context: Context | None = None,
) -> Decision:
    return Decision(key, LIMIT, (allowed, remaining, retry_after_us, 0, 0), context or Context())


def denied(key: str = "k", retry_after_us: int = SECOND_US, **words: object) -> Decision:
    return decision(key, allowed=False, retry_after_us=retry_after_us, **words)  # type: ignore[arg-type]


def test_decisions_are_counted_by_rule_algorithm_result_and_source(
    recorder: Recorder, limiter: Limiter
) -> None:
    for _ in range(7):
        recorder.record(limiter.hit("k", "5/minute"))
    recorder.record(limiter.hit("k", "5/minute", cost=6))
    recorder.record(decision(context=Context(rule="login", source="cache")))
    recorder.record(denied(context=Context(source="ban"), retry_after_us=NEVER))
    assert recorder.checks() == {
        Series("-", "sliding_window", "allowed", "engine"): 5,
        Series("-", "sliding_window", "denied", "engine"): 2,
        Series("-", "sliding_window", "never", "engine"): 1,
        Series("login", "sliding_window", "allowed", "cache"): 1,
        Series("-", "sliding_window", "denied", "ban"): 1,
    }
    assert recorder.totals == Totals(10, 4)


def test_a_run_is_counted_like_its_decisions_one_by_one(clock: ManualClock) -> None:
    """Also in between others: what was recorded before a run was decided before it."""
    together, alone = Recorder(clock), Recorder(clock)
    hit_run = MemoryEngine(clock=clock).bind_run(LIMIT, "login")
    for keys, cost, took_ns in (("aab", 1, 20_000), ("aaab", 1, 0), ("ab", 9, 2), ("cb", 0, 9)):
        run = hit_run(list(keys), cost)
        together.record_run(run, took_ns)
        for one in run.decisions():
            alone.record(one, took_ns)
        for recorder in (together, alone):
            recorder.record(denied("b"), 7)
        assert together.checks() == alone.checks()
        assert together.totals == alone.totals
        assert together.top() == alone.top()
        assert together.blocks(clock.now_us()) == alone.blocks(clock.now_us())
        assert together.durations.value == alone.durations.value
        clock.advance(1)
    assert {series.result for series in together.checks()} == {"allowed", "denied", "never"}


def test_no_key_of_many_runs_is_lost_or_counted_twice(clock: ManualClock) -> None:
    recorder = Recorder(clock)
    hit_run = MemoryEngine(clock=clock).bind_run(LIMIT)
    for _ in range(FOLD_AT):
        recorder.record_run(hit_run(["a", "b", "a"], 0))
    assert recorder.top(2)[0] == [TopKey("a", 2 * FOLD_AT, 0), TopKey("b", FOLD_AT, 0)]
    assert recorder.totals == Totals(3 * FOLD_AT, 0)


def test_a_key_that_passes_in_a_run_is_not_blocked_any_more(
    recorder: Recorder, clock: ManualClock
) -> None:
    recorder.record(denied("a"))
    recorder.record(denied("b"))
    recorder.record_run(MemoryEngine(clock=clock).bind_run(LIMIT)(["a", "c"], 1))
    assert [block.key for block in recorder.blocks(clock.now_us())] == ["b"]


def test_nothing_is_lost_or_counted_twice_when_folding_in_between(recorder: Recorder) -> None:
    for i in range(3 * FOLD_AT + 7):
        recorder.record(decision(str(i % 3)), i + 1)
        if i % 1000 == 0:
            assert recorder.totals.requests == i + 1
    assert recorder.totals == Totals(3 * FOLD_AT + 7, 0)
    assert sum(recorder.durations.counts) == 3 * FOLD_AT + 7


def test_shadow_rules_that_would_have_denied_are_counted(
    recorder: Recorder, limiter: Limiter
) -> None:
    for _ in range(3):
        charges = [
            Charge("k", "9/minute"),
            Charge("k", "1/minute", kind=ChargeKind.SHADOW, rule="new", algorithm="fixed_window"),
        ]
        recorder.record(limiter.decide(charges))
    assert recorder.checks() == {
        Series("-", "sliding_window", "allowed", "engine"): 3,
        Series("new", "fixed_window", "denied", "shadow"): 2,
    }


def test_rules_beyond_the_bound_are_counted_together(recorder: Recorder) -> None:
    for i in range(MAX_SERIES + 50):
        recorder.record(decision(context=Context(rule=f"rule-{i}")))
    checks = recorder.checks()
    assert len(checks) == MAX_SERIES + 1
    assert checks[Series("other", "sliding_window", "allowed", "engine")] == 50


def test_rules_that_come_and_go_for_years_take_no_room(recorder: Recorder) -> None:
    total = 20 * MAX_SERIES
    before = 0
    for i in range(total):
        recorder.record(decision(context=Context(rule=f"rule-{i}")))
        if i % MAX_SERIES == 0:
            checks = recorder.checks()
            assert sum(checks.values()) == i + 1
            others = checks.get(Series("other", "sliding_window", "allowed", "engine"), 0)
            assert others >= before  # A counter never falls.
            before = others
    assert recorder.checks()[Series("rule-0", "sliding_window", "allowed", "engine")] == 1
    assert len(recorder._checks) <= 2 * MAX_SERIES


def test_durations_fall_into_their_buckets(recorder: Recorder) -> None:
    for took_ns in (1, BUCKETS_NS[0], BUCKETS_NS[0] + 1, BUCKETS_NS[-1] + 1, 0):
        recorder.record(decision(), took_ns)
    recorder.fold()
    counts = recorder.durations.counts
    assert (counts[0], counts[1], counts[-1], sum(counts)) == (2, 1, 1, 4)
    assert recorder.durations.sum == 1 + 2 * BUCKETS_NS[0] + 1 + BUCKETS_NS[-1] + 1


def test_a_denied_key_is_blocked_until_the_moment_the_denial_named(
    recorder: Recorder, clock: ManualClock
) -> None:
    recorder.record(denied("k", 5 * SECOND_US, context=Context(rule="login")))
    at_us = clock.now_us()
    clock.advance(3)  # Folded later, but counted from the denial.
    block = Block(
        "k",
        at_us + 5 * SECOND_US,
        "rule login: 5 per minute, sliding_window",
        "login",
        60 * SECOND_US,
        1,
    )
    assert recorder.blocks() == [block]
    clock.advance(2)
    assert recorder.blocks() == []


def test_a_key_that_passes_again_is_not_blocked_any_more(recorder: Recorder) -> None:
    recorder.record(denied("k"))
    recorder.record(decision("k"))
    assert recorder.blocks() == []
    recorder.record(denied("k"))
    assert len(recorder.blocks()) == 1
    recorder.record(decision("k"))
    assert recorder.blocks() == []


def test_a_block_ends_by_the_clock_that_all_nodes_share(
    recorder: Recorder, clock: ManualClock
) -> None:
    """A node whose clock is an hour late tells its blocks an hour later."""
    recorder.record(denied("k", 5 * SECOND_US))
    until_us = clock.now_us() + 3_605 * SECOND_US
    assert [one.until_us for one in recorder.blocks(3_600 * SECOND_US)] == [until_us]
    (told,) = read_blocks(recorder.report(offset_us=3_600 * SECOND_US).lists["blocks"])
    assert told.until_us == until_us


def test_a_block_outlives_what_the_key_passes_elsewhere(
    recorder: Recorder, limiter: Limiter
) -> None:
    for _ in range(2):
        recorder.record(limiter.hit("k", "1/minute"))
    reason = "1 per minute, sliding_window"
    assert [one.reason for one in recorder.blocks()] == [reason]
    recorder.record(limiter.hit("k", "9/hour"))
    recorder.record(decision("k", context=Context(rule="login")))
    assert [one.reason for one in recorder.blocks()] == [reason]
    for _ in range(9):
        recorder.record(limiter.hit("k", "9/hour"))
    assert {one.reason for one in recorder.blocks()} == {reason, "9 per hour, sliding_window"}
    recorder.unblock("k")
    assert recorder.blocks() == []


def test_of_several_rules_those_that_deny_block_and_those_that_pass_do_not(
    recorder: Recorder, limiter: Limiter
) -> None:
    def ask() -> None:
        charges = [
            Charge("ann", "1/minute", rule="user"),
            Charge("1.2.3.4", "9/minute", rule="client"),
            Charge("ann", "1/hour", rule="trial", kind=ChargeKind.SHADOW),
        ]
        recorder.record(limiter.decide(charges))

    recorder.record(denied("1.2.3.4", context=Context(rule="client")))
    ask()
    ask()
    assert [(one.key, one.reason) for one in recorder.blocks()] == [
        ("ann", "rule user: 1 per minute, sliding_window")
    ]


def test_a_ban_is_no_block(recorder: Recorder) -> None:
    recorder.record(denied("k", context=Context(source="ban")))
    assert recorder.blocks() == []


def test_a_denial_of_a_large_cost_or_for_ever_does_not_block_the_key(recorder: Recorder) -> None:
    recorder.record(denied("large", remaining=2))
    recorder.record(denied("never", NEVER))
    assert recorder.blocks() == []


def test_blocks_are_bounded_and_keep_those_that_last_longest(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks_module, "MAX_BLOCKS", 10)
    monkeypatch.setattr(blocks_module, "ROOM", 40)
    for i in range(100):
        recorder.record(denied(f"k{i}", (i // 10 + 1) * SECOND_US))
    assert {block.key for block in recorder.blocks()} == {f"k{i}" for i in range(90, 100)}
    for i in range(100):
        recorder.record(denied(f"same{i}", 50 * SECOND_US))
    assert len(recorder.blocks()) == 10


def test_a_reset_unblocks_a_key(recorder: Recorder) -> None:
    recorder.record(denied("k"))
    recorder.unblock("k")
    assert recorder.blocks() == []


def test_the_report_carries_totals_blocks_and_top_keys(recorder: Recorder) -> None:
    long = "x" * 300
    for key in ("k", "k", long):
        recorder.record(denied(key))
    report = recorder.report()
    assert report.totals == Totals(3, 3)
    assert {block.key for block in read_blocks(report.lists["blocks"])} == {"k", "x" * 256}
    assert read_top(report.lists["top"]) == ([TopKey("k", 2, 0), TopKey("x" * 256, 1, 0)], 0)
    assert not recorder.report(alone=True).lists


def test_top_keys_are_those_of_the_last_minutes(recorder: Recorder, clock: ManualClock) -> None:
    recorder.record(decision("old"))
    recorder.record_run(MemoryEngine(clock=clock).bind_run(LIMIT)(["old", "older"], 1))
    for _ in range(2):
        clock.advance(61)
        recorder.report()
    recorder.record(decision("new"))
    assert recorder.top() == ([TopKey("new", 1, 0)], 0)


def test_failures_are_counted_by_whether_they_may_have_been_charged(recorder: Recorder) -> None:
    recorder.record_failure(EngineError("x", transient=True, indefinite=True))
    recorder.record_failure(EngineError("x", transient=True))
    recorder.record_ignored_fields(3)
    assert dict(recorder.failures) == {"unknown": 1, "not_charged": 1}
    assert recorder.ignored_fields == 3
