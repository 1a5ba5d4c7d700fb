"""The tests themselves: each asserts something, none waits without a reason, none needs a port that may be taken."""

from __future__ import annotations

import ast
import socket
import textwrap
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from tests import fixed_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Set as AbstractSet

ROOT: Final = Path(__file__).parents[2]
CODE: Final = (*sorted((ROOT / "tests").rglob("*.py")), ROOT / "conftest.py")
WITH_ASSERTS: Final = (*CODE, *sorted((ROOT / "src/headgate/testing").rglob("*.py")))
TESTS: Final = tuple(path for path in CODE if path.name.startswith("test_"))
ASSERTING: Final = frozenset({"pytest.raises", "pytest.warns", "pytest.fail", "expect"})
"""What fails a test by itself; `expect` is Playwright's."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


class Uses(NamedTuple):
    """What a function does that could fail a test."""

    name: str
    asserts: bool
    names: frozenset[str]
    """What it calls, or hands on to be called; methods with a dot in front."""

    def asserting(self, known: AbstractSet[str]) -> bool:
        """Whether it asserts, or uses something that does."""
        return self.asserts or not self.names.isdisjoint(known)


def names_in(function: Function) -> frozenset[str]:
    found = {argument.arg for argument in function.args.args}  # Fixtures are asked for so.
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(f".{node.attr}")
            if isinstance(node.value, ast.Name):
                found.add(f"{node.value.id}.{node.attr}")
    return frozenset(found)


def uses_of(tree: ast.Module) -> list[Uses]:
    methods = {
        method for kind in ast.walk(tree) if isinstance(kind, ast.ClassDef) for method in kind.body
    }
    return [
        Uses(
            f".{one.name}" if one in methods and not one.name.startswith("test_") else one.name,
            any(isinstance(node, ast.Assert) for node in ast.walk(one)),
            names_in(one),
        )
        for one in functions(tree)
    ]


def imported(tree: ast.Module) -> frozenset[str]:
    """What a module takes from the tests' own parts, or from those that ship with the package."""
    return frozenset(
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and (node.level or str(node.module).startswith(("tests", "headgate.testing")))
        for alias in node.names
    )


def classes_of(tree: ast.Module) -> frozenset[str]:
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


@cache
def asserting_names() -> dict[Path, frozenset[str]]:
    """For each module the functions that assert: its own, those that it imports, and methods of classes it imports."""
    modules = {path: uses_of(tree_of(path)) for path in WITH_ASSERTS}
    shared = {path: imported(tree_of(path)) for path in WITH_ASSERTS}
    classes = {path: classes_of(tree_of(path)) for path in WITH_ASSERTS}
    names = dict.fromkeys(modules, ASSERTING)
    while True:
        anywhere = frozenset().union(*names.values())
        methods = {
            path: frozenset(name for name in found if name.startswith("."))
            for path, found in names.items()
        }
        grown = {
            path: names[path]
            | (anywhere & shared[path])
            | frozenset().union(
                *(methods[other] for other in modules if classes[other] & shared[path])
            )
            | {
                one.name
                for one in functions
                if not one.name.startswith("test_") and one.asserting(names[path])
            }
            for path, functions in modules.items()
        }
        if grown == names:
            return names
        names = grown


def without_assertion(tree: ast.Module, known: AbstractSet[str]) -> list[str]:
    return [
        one.name
        for one in uses_of(tree)
        if one.name.startswith("test_") and not one.asserting(known)
    ]


def sleeps_without_reason(source: str) -> list[int]:
    """Lines that wait, and say neither beside nor above it why a clock could not be moved in the place of that."""
    lines = source.splitlines()
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"time.sleep", "asyncio.sleep", "sleep"}
        and ast.unparse(node.args[0]) != "0"  # That only lets others run.
        and not any("#" in line for line in lines[node.lineno - 1 : node.end_lineno])
        and not lines[node.lineno - 2].lstrip().startswith("#")
    ]


def services_on_the_usual_port(tree: ast.Module) -> list[str]:
    """Functions that start `headgate serve` and leave the port to its default."""
    return [
        one.name
        for one in functions(tree)
        if any(
            isinstance(node, ast.List | ast.Tuple)
            and "'-m', 'headgate', 'serve'" in ast.unparse(node)
            for node in ast.walk(one)
        )
        and "PORT" not in ast.unparse(one)
        and "'--port'" not in ast.unparse(one)
    ]


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_test_asserts_something(path: Path) -> None:
    assert without_assertion(tree_of(path), asserting_names()[path]) == []


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_sleeps_without_a_reason(path: Path) -> None:
    assert sleeps_without_reason(path.read_text()) == []


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_service_is_started_on_the_usual_port(path: Path) -> None:
    assert services_on_the_usual_port(tree_of(path)) == []


def test_a_test_without_an_assertion_is_found() -> None:
    source = """
        def test_nothing(): run()
        def test_plain(): assert run()
        def test_by_a_helper(): require(run())
        def test_raises():
            with pytest.raises(ValueError): run()
        class TestMany:
            async def test_in_a_class(self): self.run()
    """
    tree = ast.parse(textwrap.dedent(source))
    found = without_assertion(tree, ASSERTING | {"require"})
    assert sorted(found) == ["test_in_a_class", "test_nothing"]


def test_a_sleep_without_a_reason_is_found() -> None:
    source = """
        time.sleep(1)
        time.sleep(1)  # The server's own clock runs.
        # The server's own clock runs.
        asyncio.sleep(1)
        asyncio.sleep(0)
        asyncio.sleep(0.1)
    """
    assert sleeps_without_reason(textwrap.dedent(source)) == [2, 7]


def test_a_service_on_the_usual_port_is_found() -> None:
    source = """
        def usual(): run([sys.executable, "-m", "headgate", "serve", *options])
        def named(): run([sys.executable, "-m", "headgate", "serve", "--port", port])
        def any_port(): run([sys.executable, "-m", "headgate", "serve"], env={"PORT": "0"})
    """
    assert services_on_the_usual_port(ast.parse(textwrap.dedent(source))) == ["usual"]


@pytest.mark.parametrize(
    "address, fixed",
    [
        (("127.0.0.1", 8080), True),
        (("localhost", 6379), True),
        (("::1", 2379, 0, 0), True),
        (("", 9000), True),
        (("127.0.0.1", 0), False),
        (("127.0.0.1", fixed_ports.NOBODY), False),
        (("127.0.0.1", fixed_ports.FIRST_DRAWN), False),
        (("192.0.2.1", 8080), False),
        ("/run/socket", False),
    ],
)
def test_a_fixed_port_is_distinguished_from_a_drawn_one(address: object, fixed: bool) -> None:  # noqa: FBT001
    assert fixed_ports.is_fixed(address) is fixed


def test_a_fixed_port_is_noted_when_it_is_asked_for() -> None:
    with socket.socket() as one:
        one.settimeout(1)
        one.connect_ex(("127.0.0.1", 2))
    noted = list(fixed_ports.used)
    fixed_ports.used.clear()
    assert noted == ["connect_ex ('127.0.0.1', 2)"]


def test_no_page_is_empty() -> None:
    """An editing script once emptied one, and every test of its examples passed."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert [page.name for page in pages if len(page.read_text("utf-8")) < 200] == []
