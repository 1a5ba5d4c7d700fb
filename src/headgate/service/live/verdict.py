"""The verdict: whether anything is wrong, in one sentence. Pure.

The limits are those of `deploy/prometheus/alerts.yml`. The page, the command line and the log say the same, because the
sentence is made here.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

SLOW_US: Final = 5_000
LONG_QUEUE: Final = 500
MANY_DENIED: Final = 0.1
LATE_US: Final = 100_000
SHOWN: Final = 3
WITHOUT_IT: Final = {
    "nothing": ("denies everybody", "deny everybody"),
    "no limit": ("lets everybody pass", "let everybody pass"),
    "an error": ("answers with an error", "answer with an error"),
}
"""What rules do that give no share of their limits."""
NOBODY_HAS: Final = "Nobody can use them until their windows end."
"""Of units that got lost between regions."""
NOTHING: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({})


class Facts(NamedTuple):
    """What a verdict is made of."""

    req_per_sec: float = 0.0
    deny_rate: float = 0.0
    algorithm: str = "sliding_window"
    busiest_rule: str | None = None
    """The rule that denies most; `None` if none does."""
    total_requests: int = 0
    store: str = "Redis"
    store_down_for: float | None = None
    """Seconds; `None` while it answers."""
    gives: Mapping[str, tuple[str, ...]] = NOTHING
    """Without the store: what is given (a share, or a key of `WITHOUT_IT`), and by which rules."""
    failed_per_sec: float = 0.0
    open_per_sec: float = 0.0
    p99_us: int | None = None
    queue: int = 0
    free_shards: int = 0
    """Shards of etcd that no node owns."""
    loop_late_us: int = 0
    board_stale_for: float | None = None
    rules_stale_for: float | None = None
    rules_alarm: str | None = None
    nodes_down: tuple[tuple[str, float], ...] = ()
    """Their names, and for how many seconds."""
    regions_cut: tuple[str, ...] = ()
    """Other regions that cannot be reached."""
    regions_promise: str = ""
    """What holds for limits that regions merge, as long as that lasts."""
    rights_lost: int = 0
    """Units that were lost between regions, if that was in the last hour."""
    draining: bool = False
    all_off: str | None = None
    """Why all limits are turned off, if they are."""
    rules_off: tuple[str, ...] = ()


class Trouble(NamedTuple):
    """Something that is wrong."""

    code: str
    level: str
    headline: str
    text: str
    since: float | None = None


def verdict_of(facts: Facts, now: float) -> dict[str, Any]:
    """What to say first."""
    every = [*_of_the_switch(facts), *_of_the_store(facts, now), *_of_the_cluster(facts, now)]
    problems = sorted([*every, *_of_traffic(facts)], key=lambda one: one.level != "bad")[:SHOWN]
    if not problems:
        return {"level": "ok", "text": _well(facts), "problems": []}
    level = problems[0].level
    if level == "bad":
        text = ", and ".join(one.headline for one in problems if one in every)
        if not text.startswith(facts.store):  # etcd stays in lower case.
            text = text[0].upper() + text[1:]
    else:
        text = " ".join(one.text for one in problems)
    told = [
        {"code": one.code, "level": one.level, "text": one.text, "since": one.since}
        for one in problems
    ]
    return {"level": level, "text": text, "problems": told}


def _well(facts: Facts) -> str:
    if not facts.total_requests:
        return "All is well. No requests yet."
    if facts.req_per_sec < 0.05:
        return "All is well. No requests right now."
    rate = f"{_number(facts.req_per_sec)} requests a second, {_percent(facts.deny_rate)} denied"
    by = f", most of them by {facts.busiest_rule}" if facts.deny_rate and facts.busiest_rule else ""
    if facts.algorithm == "token_bucket":
        return f"All is well. Requests come in bursts, and a token bucket takes them: {rate}{by}."
    return f"All is well. {rate}{by}."


def _of_the_switch(facts: Facts) -> list[Trouble]:
    found = []
    if facts.all_off is not None:
        why = f": {facts.all_off}" if facts.all_off else ""
        text = f"All limits on this node are turned off{why}. Everything passes."
        found.append(Trouble("limits-off", "bad", "all limits are turned off", text))
    if facts.rules_off:
        names = ", ".join(facts.rules_off)
        text = f"Turned off by hand: {names}."
        found.append(Trouble("rules-off", "warn", "rules are turned off", text))
    return found


def _of_the_store(facts: Facts, now: float) -> list[Trouble]:
    found = []
    if facts.store_down_for is not None:
        failing = "Some checks are answered 503." if facts.failed_per_sec else ""
        ends = f"It recovers automatically when {facts.store} is back."
        lasts = f"It has not answered for {span(facts.store_down_for)}."
        text = " ".join(filter(None, (lasts, *_without_it(facts.gives), failing, ends)))
        headline = f"{facts.store} does not answer"
        found.append(Trouble("store-down", "bad", headline, text, now - facts.store_down_for))
    elif facts.failed_per_sec:
        text = f"{_number(facts.failed_per_sec)} checks a second get no decision; see the log."
        found.append(Trouble("checks-failing", "bad", "checks fail", text))
    if facts.open_per_sec and facts.store_down_for is None and facts.all_off is None:
        text = f"{_number(facts.open_per_sec)} requests a second pass without being counted."
        found.append(Trouble("answers-open", "bad", "some requests are not limited", text))
    if facts.free_shards and facts.store_down_for is None:
        have = f"{shards(facts.free_shards)} {'has' if facts.free_shards == 1 else 'have'} no owner"
        text = f"{have}; checks of their keys wait for one."
        found.append(Trouble("shards-free", "warn", have, text))
    return found


def _without_it(gives: Mapping[str, tuple[str, ...]]) -> list[str]:
    """What holds without the store, and what does not."""
    found = []
    for share in gives.keys() - WITHOUT_IT.keys():
        each = "this node goes on alone" if share == "all" else f"each node gives {share} of it"
        found.append(
            f"Limits hold, less exactly: {each}; a key may get up to twice its limit around the change."
        )
    for given, does in WITHOUT_IT.items():
        if rules := gives.get(given):
            one, many = does
            found.append(f"{_listed(rules)} {one if len(rules) == 1 else many}.")
    return found


def _of_traffic(facts: Facts) -> list[Trouble]:
    found = []
    if facts.deny_rate > MANY_DENIED and facts.req_per_sec >= 1:
        by = f", most of them by {facts.busiest_rule}" if facts.busiest_rule else ""
        text = f"{_percent(facts.deny_rate)} of {_number(facts.req_per_sec)} requests a second are denied{by}."
        found.append(Trouble("denied-share", "warn", "many requests are denied", text))
    if facts.p99_us is not None and facts.p99_us > SLOW_US:
        text = f"Decisions are slow: one in a hundred takes {facts.p99_us / 1000:.0f} ms or longer."
        found.append(Trouble("slow", "warn", "decisions are slow", text))
    if facts.queue > LONG_QUEUE:
        text = f"{facts.queue:,} requests wait for {facts.store}, which is slower than the traffic."
        found.append(Trouble("queue", "warn", f"requests wait for {facts.store}", text))
    if facts.loop_late_us > LATE_US:
        late = f"{facts.loop_late_us / 1000:.0f} ms late"
        text = f"This process is {late}: it gets too little CPU, or something blocks it."
        found.append(Trouble("loop-late", "warn", "this process is late", text))
    return found


def _of_the_cluster(facts: Facts, now: float) -> list[Trouble]:
    found = []
    if facts.nodes_down:
        names = ", ".join(name for name, _ in facts.nodes_down)
        silent = max(seconds for _, seconds in facts.nodes_down)
        is_one = len(facts.nodes_down) == 1
        headline = f"{names} {'is' if is_one else 'are'} down"
        text = f"{names} {'was' if is_one else 'were'} last heard from {span(silent)} ago."
        found.append(Trouble("node-down", "warn", headline, text, now - silent))
    if facts.regions_cut:
        names = _listed(facts.regions_cut)
        is_one = len(facts.regions_cut) == 1
        headline = f"{'the region' if is_one else 'the regions'} {names} cannot be reached"
        text = f"{headline[0].upper()}{headline[1:]}. What holds: {facts.regions_promise}."
        found.append(Trouble("region-cut", "warn", headline, text))
    if facts.rights_lost:
        lost = units(facts.rights_lost)
        text = f"{lost} of limits kept by escrow got lost between regions. {NOBODY_HAS}"
        found.append(Trouble("rights-lost", "warn", "units got lost between regions", text))
    if facts.board_stale_for is not None and facts.store_down_for is None:
        text = (
            f"This node has not heard from the others for {span(facts.board_stale_for)}: "
            "its figures cover only itself, and bans and overrides may be out of date."
        )
        headline = "this node is cut off"
        found.append(Trouble("board-stale", "warn", headline, text, now - facts.board_stale_for))
    if facts.rules_stale_for is not None:
        text = (
            f"The rules may be out of date: they were last read {span(facts.rules_stale_for)} ago."
        )
        headline = "rules are out of date"
        found.append(Trouble("rules-stale", "warn", headline, text, now - facts.rules_stale_for))
    if facts.rules_alarm:
        text = f"The last change of the rules looks like a mistake: {facts.rules_alarm}."
        found.append(Trouble("rules-alarm", "warn", "rules look wrong", text))
    if facts.draining:
        found.append(
            Trouble("draining", "warn", "this node is shutting down", "This node is shutting down.")
        )
    return found


def _listed(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def units(many: int) -> str:
    """1 unit; 2,310 units."""
    return "1 unit" if many == 1 else f"{many:,} units"


def shards(many: float) -> str:
    """1 shard; 21 shards."""
    return "1 shard" if many == 1 else f"{many:,.0f} shards"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}"


def _percent(share: float) -> str:
    return f"{_number(100 * share)}%" if share else "none"


def span(seconds: float) -> str:
    """44 s; 5 min; 3 h."""
    whole = round(seconds)
    return (
        f"{whole} s"
        if whole < 120
        else f"{whole // 60} min"
        if whole < 7_200
        else f"{whole // 3600} h"
    )
