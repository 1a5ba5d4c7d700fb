"""Path patterns mean what their page says, alone and all together."""

from __future__ import annotations

import pytest

from headgate.rules.matching.path_patterns import PatternError, capture, fits, pieces_of
from headgate.rules.matching.path_trie import PathTrie

CASES = {
    "a fixed path is itself": ("/a/b", ["/a/b"], ["/a", "/a/b/c", "/A/b", "/"]),
    "a star at the end is one or more": ("/a/*", ["/a/b", "/a/b/c"], ["/a", "/b/c", "/"]),
    "a star elsewhere is exactly one": ("/a/*/c", ["/a/b/c"], ["/a/c", "/a/b/b/c", "/a/b"]),
    "a name is exactly one": ("/a/{id}", ["/a/b"], ["/a", "/a/b/c"]),
    "two stars at the end are any number": ("/a/**", ["/a", "/a/b", "/a/b/c"], ["/", "/b"]),
    "two stars elsewhere are any number": ("/**/z", ["/z", "/a/z", "/a/b/z"], ["/", "/z/a"]),
    "gaps may follow each other": ("/**/a/**/b", ["/a/b", "/x/a/y/z/b"], ["/b/a", "/a"]),
    "a gap twice is a gap": ("/**/**/a", ["/a", "/x/a"], ["/", "/a/x"]),
    "a lone star is everything": ("*", ["/", "/a", "/a/b", "*"], []),
    "the root is itself": ("/", ["/"], ["/a"]),
    "a slash at the end is nothing": ("/a/", ["/a"], ["/a/b"]),
    "letters are spelled like those of a path": ("/café", ["/caf%C3%A9"], ["/cafe"]),
    "a star after a gap": ("/**/*", ["/a", "/a/b"], ["/"]),
}


def segments(path: str) -> list[str]:
    return [segment for segment in path.split("/") if segment]


@pytest.mark.parametrize("pattern, yes, no", CASES.values(), ids=CASES)
def test_pattern(pattern: str, yes: list[str], no: list[str]) -> None:
    trie: PathTrie[object] = PathTrie(object)
    alone = trie.at(pattern)
    for path in yes + no:
        fit = path in yes
        assert fits(pieces_of(pattern), segments(path)) is fit, path
        assert any(found is alone for found in trie.find(segments(path))) is fit, path


def test_what_a_segment_is_called_makes_no_other_pattern() -> None:
    trie: PathTrie[object] = PathTrie(object)
    assert trie.at("/users/{id}/x") is trie.at("/users/{name}/x")
    assert trie.at("/users/*/x") is trie.at("/users/{id}/x")


@pytest.mark.parametrize(
    "pattern, name, path, found",
    [
        ("/users/{id}/posts", "id", "/users/7/posts", "7"),
        ("/{a}/{b}/*", "b", "/1/2/3/4", "2"),
        ("/**/{last}", "last", "/1/2/3", "3"),
        ("/**/v/{x}/**/end", "x", "/v/1/v/2/end", "1"),
    ],
)
def test_capture(pattern: str, name: str, path: str, found: str) -> None:
    assert capture(pieces_of(pattern), name, segments(path)) == found


BAD = {
    "no slash in front": ("users", "does not begin with '/'; write '/users'"),
    "part of a segment": ("/users/*.json", "whole segments"),
    "half a brace": ("/users/{id", "whole segments"),
    "a query": ("/users?x", "are not part of one"),
    "a step": ("/users/../x", "is removed from paths"),
    "an escaped slash": ("/users/%2f", "can be read in two ways"),
    "one name twice": ("/{a}/{a}", "same name"),
    "too many gaps": ("/**/a" * 5, "more than 4"),
    "too long": ("/" + "a" * 512, "at most 512"),
}


@pytest.mark.parametrize("pattern, reason", BAD.values(), ids=BAD)
def test_bad_pattern(pattern: str, reason: str) -> None:
    with pytest.raises(PatternError, match=reason.replace("'", ".").replace("*", r"\*")):
        pieces_of(pattern)


def test_hostile_patterns_and_a_hostile_path_stay_cheap() -> None:
    """At most one visit to each node per segment; the count says so, not the clock."""
    trie: PathTrie[object] = PathTrie(object)
    for depth in range(1, 5):
        trie.at("/**/a" * depth)
    visits = 0

    class Segment(str):
        __slots__ = ()

        def __hash__(self) -> int:  # Each node that is stood on looks its segment up once.
            nonlocal visits
            visits += 1
            return super().__hash__()

        __eq__ = str.__eq__

    assert len(list(trie.find([Segment("a")] * 256))) == 4
    assert visits <= 256 * 9
