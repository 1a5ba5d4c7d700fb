"""`retry_after_us` is tight: a retry then passes if nobody else came; a microsecond earlier fails.

Backoff is the exception: there it is the pace that the caller is asked to keep.
"""

from __future__ import annotations

import pytest
from hypothesis import assume, event, given, strategies as st

from headgate.algorithms import NEVER, Limit, SlidingWindow, State, TokenBucket
from headgate.algorithms.adaptive import split
from tests.property.strategies import (
    LIMITS,
    Story,
    copied,
    drafts,
    ending,
    few_slots,
    most_at_once,
    on,
    stories,
    told,
)

TIGHT = [name for name in LIMITS if name not in {"exponential_backoff", "adaptive"}]


def assert_tight(limit: Limit, state: State, now_us: int, cost: int) -> None:
    """Denied until just before, allowed from then on."""
    state, (allowed, _, retry_after_us, _, _) = limit.take(state, now_us, cost)
    event("allowed" if allowed else "denied")
    if allowed:
        assert retry_after_us == 0
    elif cost > most_at_once(limit):
        assert retry_after_us == NEVER
        assert not limit.peek(state, now_us + 10**14, cost)[0]
    else:
        assert retry_after_us > 0
        assert limit.peek(state, now_us + retry_after_us, cost)[0]
        assert not limit.peek(state, now_us + retry_after_us - 1, cost)[0]


@pytest.mark.parametrize("name", TIGHT)
@given(data=st.data())
def test_a_retry_passes_at_retry_after_and_not_before(name: str, data: st.DataObject) -> None:
    """For any state, also one that was forced over its limit, and any cost."""
    story = data.draw(stories(LIMITS[name], "take", "take", "force"))
    limit = story.limit
    state, now_us = ending(story)
    for last in on(limit, data.draw(drafts("take", back=False, most=4))):
        now_us += last.move_us
        assert_tight(limit, copied(limit, state), now_us, last.cost)


@given(data=st.data())
def test_adaptive_is_as_tight_as_the_candidate_that_decides(data: st.DataObject) -> None:
    """What the others were charged does not come into it."""
    story = data.draw(stories(LIMITS["adaptive"], "take", "take", "force"))
    index = story.limit._index
    candidate = story.limit.candidates[index]
    assume(isinstance(candidate, SlidingWindow | TokenBucket))
    state, now_us = ending(story)
    for last in on(candidate, data.draw(drafts("take", back=False, most=4))):
        now_us += last.move_us
        own = None if state is None else copied(candidate, split(state)[index])
        assert story.limit.peek(state, now_us, last.cost) == candidate.peek(own, now_us, last.cost)
        assert_tight(candidate, own, now_us, last.cost)


@given(story=stories(few_slots, "hold", "hold", "hold", "release", back=False))
def test_a_holder_that_wants_more_slots_waits_only_for_the_others(story: Story) -> None:
    """Its own slots are not in its way: it is answered as if it had let go before."""
    limit, state, now_us = story.limit, None, story.start_us
    for verb, move_us, cost, which in story.events:
        now_us += move_us
        token = f"holder {which % 4}"
        if verb == "release":
            state = limit.release(state, now_us, token)
            continue
        state, (allowed, _, retry_after_us, _, _) = limit.hold(state, now_us, cost, token)
        if not allowed and retry_after_us != NEVER:
            assert limit.hold(state, now_us + retry_after_us, cost, token)[1][0]
            assert not limit.hold(state, now_us + retry_after_us - 1, cost, token)[1][0]


@given(story=stories(LIMITS["exponential_backoff"], "take", "force", back=False))
def test_backoff_asks_for_a_pace_that_doubles_with_the_level(story: Story) -> None:
    """A request, not a promise that it will pass then."""
    for one in told(story):
        allowed, _, retry_after_us, _, level = one.answer
        if one.cost > story.limit.limit and one.verb == "take":
            assert retry_after_us == NEVER
        else:
            assert retry_after_us == (0 if allowed else story.limit.retry_us * 2**level)
