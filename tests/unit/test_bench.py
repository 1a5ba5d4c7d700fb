"""The benchmark runs and says what it promises to say; how fast anything is, no test can know."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import headgate
from bench.harness import Contender, Race, facts, race, save, table, verify
from bench.inprocess import memory, scenarios, targets
from bench.inprocess.builds import BUILDS, PURE, load
from bench.inprocess.contenders import ENTRIES, OURS, PACKAGES
from bench.inprocess.plot import draw

TINY = scenarios.Settings(rounds=2, hits=20, keys=50, passes=1, weighed_keys=1_000, seed=7)


def test_every_contender_gets_every_slice_and_the_first_is_a_warm_up() -> None:
    seen: dict[str, list[list[str]]] = {"a": [], "b": []}

    def recorder(name: str) -> Callable[[object], None]:
        return lambda keys: seen[name].append(list(keys))  # type: ignore[call-overload]

    settled: list[str] = []
    field = [Contender(name, recorder(name), lambda: settled.append("once")) for name in seen]
    outcome = race(field, [["k"], ["l"], ["m", "n"]], seed=7)
    assert seen == {"a": [["k"], ["l"], ["m", "n"]], "b": [["k"], ["l"], ["m", "n"]]}
    assert [len(rounds) for rounds in outcome.rounds.values()] == [2, 2]
    assert len(settled) == 6


def test_a_ratio_is_the_median_of_the_ratios_inside_a_round() -> None:
    outcome = Race({"ours": [1.0, 2.0, 10.0], "theirs": [4.0, 6.0, 20.0]})
    assert outcome.times_faster("ours", "theirs") == 3.0
    assert outcome.ns("theirs") == 6.0
    assert outcome.fastest(["ours", "theirs"]) == "ours"


def test_two_contenders_cannot_share_a_name() -> None:
    with pytest.raises(ValueError, match="same name"):
        race([Contender("a", len), Contender("a", len)], [], seed=7)


@pytest.mark.parametrize("answer", [True, False])
def test_what_is_not_a_limiter_is_not_timed(answer: bool) -> None:  # noqa: FBT001
    with pytest.raises(AssertionError, match="should admit 5"):
        verify("fake", lambda _: answer, 5)


def test_keys_that_share_one_limit_are_noticed() -> None:
    left = iter([True] * 5 + [False] * 4)
    with pytest.raises(AssertionError, match="of another"):
        verify("fake", lambda _: next(left), 5)


def test_a_table_aligns_numbers_right_and_words_left() -> None:
    assert table("T", ["", "ns"], [["a", "5"], ["bb", "1,000"]]).splitlines() == [
        "",
        "T",
        "",
        "       ns",
        "--  -----",
        "a       5",
        "bb  1,000",
    ]


def test_the_facts_name_versions_but_no_place() -> None:
    known = facts(PACKAGES)
    assert set(PACKAGES) <= set(known)
    assert not any("/" in value for value in known.values())


@pytest.mark.slow
def test_a_tiny_run_of_everything_has_its_whole_structure(tmp_path: Path) -> None:
    """Slow, because it builds, verifies and runs all contenders in all scenarios."""
    scenarios.verify_all()
    results = list(scenarios.everything(TINY))
    by_name = {result.name: result for result in results}
    assert len(by_name) == len(results) == 9
    prices = {row.algorithm for row in by_name["bound"].rows}
    assert {"limit.hit fixed_window", "acquire fixed_window", "await acquire token_bucket"} < prices

    for name in ("hot_allowed", "hot_denied", "many_keys"):
        result = by_name[name]
        assert set(result.race.rounds) == {*ENTRIES, "floor"}
        assert [row.algorithm for row in result.rows] == list(OURS)
        assert all(row.met in {True, False} for row in result.rows)
        assert all(row.best_peer in targets.CLOSEST[OURS[row.algorithm][1]] for row in result.rows)
        assert all(algorithm in result.as_text() for algorithm in OURS)
    for name, wanted in (
        ("three_charges", targets.THREE_CHARGES),
        ("whole_answer", targets.WHOLE_ANSWER),
    ):
        rows = [row.algorithm for row in by_name[name].rows]
        assert rows == [build(algorithm) for build in BUILDS for algorithm in wanted]

    save(tmp_path / "out" / "r.json", {result.name: result.as_json() for result in results})
    saved = json.loads((tmp_path / "out" / "r.json").read_text())
    assert all(len(ns) == TINY.passes for ns in saved["many_keys"]["rounds_ns"].values())
    draw(results, tmp_path / "r.png")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


def test_a_second_build_is_loaded_beside_the_first_and_out_of_its_way() -> None:
    """Both are called headgate; whoever imports it later gets the first."""
    folder = Path(str(headgate.__file__)).parents[1]
    other = load("other", folder)
    assert other.limiter is not PURE.limiter
    assert other.limiter().hit("key", "1/day").allowed
    assert sys.modules["headgate"] is headgate
    assert str(folder) not in sys.path[:1]
    assert other("fixed_window") == "fixed_window other"


@pytest.mark.skipif(not memory.STATM.exists(), reason="only Linux tells")
def test_a_key_weighs_something() -> None:
    assert memory.bytes_per_key("token_bucket", 20_000) > 0  # In a process of its own.
