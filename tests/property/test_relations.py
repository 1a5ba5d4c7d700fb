"""What must hold between two runs of the same algorithm, whatever the right answer is."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st

from headgate.algorithms import (
    Adaptive,
    Answer,
    Concurrency,
    ExponentialBackoff,
    FixedWindow,
    Limit,
    SlidingLog,
    SlidingWindow,
    State,
    TokenBucket,
)
from headgate.algorithms.adaptive import split
from headgate.algorithms.base import MAX_EXACT
from tests.property.strategies import (
    LIMITS,
    Draft,
    Story,
    answers,
    copied,
    drafts,
    ending,
    examples,
    most_at_once,
    on,
    stories,
    told,
    windows_us,
)

every_algorithm = pytest.mark.parametrize("name", LIMITS)
USES = ("take", "take", "peek", "force")


def drawn(data: st.DataObject, name: str, *verbs: str, back: bool = True) -> Story:
    """A story under some limit of that algorithm."""
    return data.draw(stories(LIMITS[name], *(verbs or USES), back=back, most=16))


def going_on(
    data: st.DataObject, limit: Limit, now_us: int, *verbs: str, back: bool = False
) -> Story:
    """Another story under the same limit, from now on."""
    later: list[Draft] = data.draw(drafts(*(verbs or USES), back=back, most=10))
    return Story(limit, now_us, on(limit, later))


def one_by_one(limit: Limit, state: State, now_us: int, cost: int) -> tuple[State, int]:
    """Take `cost` times one unit; return how many were admitted."""
    admitted = 0
    for _ in range(cost):
        state, answer = limit.take(state, now_us, 1)
        admitted += answer[0]
    return state, admitted


@every_algorithm
@examples(0.15)
@given(data=st.data(), cost=st.integers(0, 12))
def test_many_units_at_once_are_admitted_only_if_they_are_one_by_one(
    name: str, data: st.DataObject, cost: int
) -> None:
    """A cost of c is no way to get more than c times a cost of 1, and leaves the same behind."""
    story = drawn(data, name)
    limit = story.limit
    state, now_us = ending(story)
    at_once, answer = limit.take(copied(limit, state), now_us, cost)
    apart, admitted = one_by_one(limit, copied(limit, state), now_us, cost)
    if answer[0]:
        assert admitted == cost
        assert limit.used(apart, now_us) == limit.used(at_once, now_us)
        assert limit.peek(apart, now_us, 1) == limit.peek(at_once, now_us, 1)


@pytest.mark.parametrize("name", ["token_bucket", "sliding_log", "concurrency"])
@examples(0.15)
@given(data=st.data(), shift_us=st.integers(1, 10**15))
def test_shifting_time_changes_nothing(name: str, data: st.DataObject, shift_us: int) -> None:
    """These know how long ago something was, not when."""
    story = drawn(data, name)
    shifted = story._replace(start_us=story.start_us + shift_us)
    assert answers(told(shifted)) == answers(told(story))


@pytest.mark.parametrize(
    "name", ["fixed_window", "sliding_window", "exponential_backoff", "adaptive"]
)
@examples(0.15)
@given(data=st.data(), windows=st.integers(1, 1_000))
def test_shifting_time_by_whole_windows_changes_nothing(
    name: str, data: st.DataObject, windows: int
) -> None:
    """Windows are aligned to the epoch, and all windows are alike."""
    story = drawn(data, name)
    shifted = story._replace(start_us=story.start_us + windows * story.limit.window_us)
    assert answers(told(shifted)) == answers(told(story))


@every_algorithm
@examples(0.15)
@given(data=st.data())
def test_peeks_change_nothing(name: str, data: st.DataObject) -> None:
    """The same story without its peeks is answered in the same way."""
    story = drawn(data, name)
    seen = told(story)
    now_us, moved_us, events = story.start_us, story.start_us, []
    for event, one in zip(story.events, seen, strict=True):
        now_us = one.now_us
        if one.verb != "peek":
            events.append(event._replace(move_us=now_us - moved_us))
            moved_us = now_us
    unseen = told(story._replace(events=events))
    assert answers(unseen) == [one.answer for one in seen if one.verb != "peek"]


@every_algorithm
@examples(0.15)
@given(data=st.data(), cost=st.integers(0, 12))
def test_a_peek_says_what_a_take_would_answer(name: str, data: st.DataObject, cost: int) -> None:
    """Only `remaining` and reset differ, and only if something is taken; and in backoff, which counts."""
    story = drawn(data, name)
    state, now_us = ending(story)
    peeked = story.limit.peek(state, now_us, cost)
    _, taken = story.limit.take(copied(story.limit, state), now_us, cost)
    if not story.limit.counts_denials or taken[0]:
        assert peeked[0] == taken[0]
        assert peeked[2] == taken[2]
        assert peeked[4] == taken[4]
    if not taken[0] and not story.limit.counts_denials:
        assert peeked == taken
    if taken[0] and name in {"fixed_window", "calendar_window", "sliding_log", "token_bucket"}:
        assert peeked[1] == taken[1] + cost


def with_more(limit: Any, more: int) -> Any:
    """The same limit with a larger number."""
    match limit:
        case TokenBucket():
            return TokenBucket(limit.limit + more, limit.window_us, limit.burst + more)
        case Adaptive():
            larger = (limit.limit + more, limit.window_us, limit.burst + more)
            return Adaptive(*larger, chosen=limit.chosen)
        case Concurrency():
            return Concurrency(limit.limit + more, limit.ttl_us)
        case _:
            return type(limit)(limit.limit + more, limit.window_us)


SMALL_LIMITS: dict[str, st.SearchStrategy[Any]] = {
    "fixed_window": st.builds(FixedWindow, st.integers(0, 20), windows_us),
    "sliding_window": st.builds(SlidingWindow, st.integers(0, 20), windows_us),
    "sliding_log": st.builds(SlidingLog, st.integers(0, 20), windows_us),
    "token_bucket": st.builds(TokenBucket, st.integers(1, 20), windows_us),
    "exponential_backoff": st.builds(ExponentialBackoff, st.integers(0, 20), windows_us),
    "adaptive": st.builds(Adaptive, st.integers(1, 20), windows_us),
    "concurrency": st.builds(Concurrency, st.integers(0, 20)),
}
"""Far from where the sliding window has to take coarser steps and so rounds more."""


@pytest.mark.parametrize("name", SMALL_LIMITS)
@examples(0.15)
@given(data=st.data(), more=st.integers(1, 20))
def test_the_first_decision_that_a_larger_limit_changes_is_an_admission(
    name: str, data: st.DataObject, more: int
) -> None:
    """Until then both have admitted the same, and the larger one has more room for it."""
    story = data.draw(stories(SMALL_LIMITS[name], "take"))
    larger = story._replace(limit=with_more(story.limit, more))
    for small, large in zip(told(story), told(larger), strict=True):
        if small.answer[0] != large.answer[0]:
            assert large.answer[0]
            break


@every_algorithm
@examples(0.15)
@given(data=st.data(), costs=st.lists(st.integers(1, 5), max_size=6))
def test_the_order_of_forced_charges_of_one_moment_does_not_matter(
    name: str, data: st.DataObject, costs: list[int]
) -> None:
    """Their sum is what counts."""
    story = drawn(data, name)
    other = data.draw(st.permutations(costs))
    state, now_us = ending(story)
    assert charged(story.limit, state, now_us, costs) == charged(story.limit, state, now_us, other)


def charged(limit: Limit, state: State, now_us: int, costs: list[int]) -> tuple[int, Answer]:
    """What is used, and what is left, after these charges."""
    state = copied(limit, state)
    for cost in costs:
        state, _ = limit.force(state, now_us, cost)
    return limit.used(state, now_us), limit.peek(state, now_us, 1)


@every_algorithm
@examples(0.15)
@given(data=st.data(), costs=st.lists(st.integers(1, 5), max_size=6))
def test_takes_of_one_moment_that_all_fit_do_so_in_any_order(
    name: str, data: st.DataObject, costs: list[int]
) -> None:
    """Who is first is only a question when there is not enough for all."""
    story = drawn(data, name)
    other = data.draw(st.permutations(costs))
    limit = story.limit
    state, now_us = ending(story)
    one, one_admitted = taken(limit, copied(limit, state), now_us, costs)
    two, two_admitted = taken(limit, copied(limit, state), now_us, other)
    if all(one_admitted):
        assert all(two_admitted)
        assert limit.used(one, now_us) == limit.used(two, now_us)
        assert limit.peek(one, now_us, 1) == limit.peek(two, now_us, 1)


def taken(limit: Limit, state: State, now_us: int, costs: list[int]) -> tuple[State, list[bool]]:
    admitted = []
    for cost in costs:
        state, answer = limit.take(state, now_us, cost)
        admitted.append(answer[0])
    return state, admitted


@every_algorithm
@examples(0.15)
@given(data=st.data(), later_us=st.integers(0, 3) | st.integers(0, 10**13))
def test_from_idle_on_a_state_means_the_same_as_none(
    name: str, data: st.DataObject, later_us: int
) -> None:
    """It can be dropped then: nothing that happens later is answered differently."""
    story = drawn(data, name)
    limit = story.limit
    state, now_us = ending(story)
    assume(state is not None)
    idle_us = max(now_us, limit.idle_at_us(state)) + later_us
    later = going_on(data, limit, idle_us)
    assert limit.used(state, idle_us) == 0
    assert answers(told(later, copied(limit, state))) == answers(told(later))


@pytest.mark.parametrize("name", sorted(LIMITS.keys() - {"adaptive"}))
@examples(0.15)
@given(data=st.data(), part=st.integers(0, 64))
def test_reset_counts_down_to_the_moment_a_state_is_idle(
    name: str, data: st.DataObject, part: int
) -> None:
    """Not a microsecond earlier or later, and so the state is no longer kept than needed."""
    story = drawn(data, name)
    state, now_us = ending(story)
    assume(state is not None)
    idle_us = story.limit.idle_at_us(state)
    state_us = max(now_us, *(one.now_us for one in told(story)))
    assume(state_us < idle_us)
    at_us = state_us + (idle_us - 1 - state_us) * part // 64
    assert story.limit.peek(state, at_us, 0)[3] == idle_us - at_us
    assert story.limit.peek(state, idle_us, 0)[3] == 0


@given(data=st.data())
def test_adaptive_is_idle_when_its_last_candidate_is(data: st.DataObject) -> None:
    """The reset that an answer shows is the deciding candidate's own, and never the later one."""
    story = drawn(data, "adaptive", back=False)
    state, now_us = ending(story)
    assume(state is not None)
    one = story.limit
    resets_us = [
        candidate.peek(part, now_us, 0)[3]
        for candidate, part in zip(one.candidates, split(state), strict=True)
    ]
    assert max(now_us, one.idle_at_us(state)) == now_us + max(resets_us)


@every_algorithm
@examples(0.15)
@given(data=st.data())
def test_a_state_survives_being_written_down(name: str, data: st.DataObject) -> None:
    """What was read back is written in the same way, and behaves in the same way."""
    story = drawn(data, name)
    limit = story.limit
    state, now_us = ending(story)
    assume(state is not None)
    later = going_on(data, limit, now_us, back=True)
    written = limit.encode(state)
    assert limit.encode(limit.decode(written)) == written
    read = told(later, limit.decode(written))
    assert answers(read) == answers(told(later, copied(limit, state)))
    assert limit.encode(state) == written


@every_algorithm
@examples(0.15)
@given(data=st.data(), cost=st.integers(0, 12))
def test_a_peek_after_a_forced_charge_confirms_it(
    name: str, data: st.DataObject, cost: int
) -> None:
    """The charge is counted in full, as far as one can count, and what it said is left is left."""
    story = drawn(data, name, "take", "peek")
    limit = story.limit
    state, now_us = ending(story)
    before = limit.used(state, now_us)
    fullest, _ = limit.force(copied(limit, state), now_us, MAX_EXACT)
    state, forced = limit.force(state, now_us, cost)
    peeked = limit.peek(state, now_us, 0)
    assert forced[0]
    assert forced[2] == 0
    assert (forced[1], forced[3], forced[4]) == (peeked[1], peeked[3], peeked[4])
    assert limit.used(state, now_us) == min(before + cost, limit.used(fullest, now_us))


def counts_time(limit: Limit) -> bool:
    """Whether usage is kept as time, so that units which never flow back cannot be expressed."""
    return isinstance(limit, TokenBucket) or (
        isinstance(limit, Adaptive) and limit.chosen == TokenBucket.name
    )


@every_algorithm
@examples(0.15)
@given(data=st.data())
def test_a_denied_take_leaves_the_very_same_state(name: str, data: st.DataObject) -> None:
    """A denial changes nothing, so hammering a limited key never delays its recovery."""
    story = drawn(data, name, back=False)
    for one in told(story):
        if one.verb == "take" and not one.answer[0] and not counts_denials_now(story.limit):
            assert one.after is one.before


def counts_denials_now(limit: Limit) -> bool:
    """Whether the test that decides is backoff, in which a denial is an event of its own."""
    return isinstance(limit, ExponentialBackoff) or (
        isinstance(limit, Adaptive) and limit.chosen == ExponentialBackoff.name
    )


@pytest.mark.parametrize("name", sorted(LIMITS.keys() - {"exponential_backoff"}))
@examples(0.15)
@given(data=st.data())
def test_hammering_does_not_move_the_moment_of_recovery(name: str, data: st.DataObject) -> None:
    """However often and whenever one asks, `retry_after_us` names the same moment."""
    story = drawn(data, name, back=False)
    limit = story.limit
    state, now_us = ending(story)
    cost = most_at_once(limit)
    state, (allowed, _, retry_after_us, _, _) = limit.take(state, now_us, cost)
    assume(not allowed and not counts_denials_now(limit))
    for part in range(8):
        at_us = now_us + retry_after_us * part // 8
        state, again = limit.take(state, at_us, cost)
        assert (again[0], at_us + again[2]) == (False, now_us + retry_after_us)


@pytest.mark.parametrize("name", SMALL_LIMITS)
@examples(0.15)
@given(data=st.data(), more=st.integers(1, 20))
def test_what_was_used_outlives_a_change_of_the_limit(
    name: str, data: st.DataObject, more: int
) -> None:
    """The state is kept under the same identity, and a larger number reads it without a fault."""
    story = data.draw(stories(SMALL_LIMITS[name], "take", "force", back=False))
    state, now_us = ending(story)
    larger = with_more(story.limit, more)
    assert larger.identity == story.limit.identity
    allowed, remaining, retry_after_us, reset_after_us, level = larger.peek(state, now_us, 1)
    assert allowed == (retry_after_us == 0)
    assert 0 <= remaining <= max(larger.limit, MAX_EXACT if name == "adaptive" else 0)
    assert min(reset_after_us, level) >= 0
    if not counts_time(larger):
        assert larger.used(state, now_us) == story.limit.used(state, now_us)


@given(story=stories(LIMITS["sliding_log"], *USES))
def test_an_older_log_is_not_changed_by_newer_ones(story: Story) -> None:
    """States of a log share one list; each still sees its own part, as if it were a copy."""
    limit = story.limit
    played = told(story)
    written = [None if one.after is None else limit.encode(one.after) for one in played]
    for (before, _), (_, one) in pairwise(zip(written, played, strict=True)):
        assert one.before is None or limit.encode(one.before) == before
