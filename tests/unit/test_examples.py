"""Every example does what it says, every picture shows what the algorithms do, every promise has its test."""

import ast
import importlib.util
import re
import runpy
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

import headgate

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PICTURES = sorted((DOCS / "explanation" / "pictures").iterdir())
OF_FAULTS = [path for path in PICTURES if path.stem.startswith("fault-")]
OF_ALGORITHMS = [path for path in PICTURES if path not in OF_FAULTS]
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def drawing() -> ModuleType:
    """The program that draws the pictures, without running it."""
    spec = importlib.util.spec_from_file_location("draw", DOCS / "explanation" / "draw.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_prints_what_its_docstring_says(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    _, found, promised = docstring.partition("Prints:\n\n")
    assert found, "an example says at the end of its docstring what it prints"
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.rstrip() == textwrap.dedent(promised).rstrip()


def test_pictures_are_those_that_are_drawn_and_stay_small() -> None:
    assert [path.stem for path in OF_ALGORITHMS] == sorted(drawing().STORIES)
    assert all(path.stat().st_size < 60_000 for path in PICTURES)


def test_pictures_of_faults_are_those_that_are_shown() -> None:
    """They are measured, by `make faults`; nothing here can draw them again."""
    pages = [DOCS / "explanation" / name for name in ("reliability.md", "regions.md")]
    text = "".join(page.read_text("utf-8") for page in pages)
    shown = re.findall(r"\(pictures/([\w.-]+)\)", text)
    assert sorted(shown) == [path.name for path in OF_FAULTS]


@pytest.mark.parametrize("path", OF_ALGORITHMS, ids=lambda path: path.stem)
def test_picture_shows_what_the_algorithm_does_today(path: Path) -> None:
    """Its description holds every answer. Run `python docs/explanation/draw.py` after a change."""
    told = next(drawing().STORIES[path.stem]())
    (description,) = re.findall(r"<dc:description>(.*?)</dc:description>", path.read_text("utf-8"))
    assert description == told


def test_every_promise_names_a_test_that_exists() -> None:
    page = (DOCS / "explanation" / "promises.md").read_text("utf-8")
    promises = [line for line in page.splitlines() if re.search(r"`[\w/]+\.py`", line)]
    assert promises
    for promise in promises:
        text = "\n".join(file_of_tests(file).read_text("utf-8") for file in files_of(promise))
        missing = [
            name for name in re.findall(r"`(test_\w+)`", promise) if f"def {name}(" not in text
        ]
        assert not missing, promise


def files_of(line: str) -> list[str]:
    return re.findall(r"`([\w/]+\.py)`", line)


def file_of_tests(name: str) -> Path:
    """Where a file of tests is: the conformance suite is part of the package."""
    package = ROOT / "src" / "headgate"
    return package / name if name.startswith("testing/") else ROOT / "tests" / name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)#\s]+)", text) + re.findall(r'src="([^"]+)"', text):
        if "://" not in link:
            assert (page.parent / link).exists(), link


def test_every_public_name_is_in_the_reference() -> None:
    page = (DOCS / "reference" / "api.md").read_text("utf-8")
    missing = [name for name in headgate.__all__ if f":: headgate.{name}" not in page]
    assert not missing
