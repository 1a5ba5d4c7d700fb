"""Promises of the package as a whole: its public names, its imports, its wheel."""

import ast
import inspect
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

import headgate

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
MODULES = sorted(SRC.rglob("*.py"))


def test_public_names_are_sorted_and_unique() -> None:
    assert list(headgate.__all__) == sorted(set(headgate.__all__))


@pytest.mark.parametrize("name", headgate.__all__)
def test_public_name_exists_and_is_documented(name: str) -> None:
    value = getattr(headgate, name)
    if inspect.isclass(value) or inspect.isroutine(value):
        # Not inspect.getdoc(), which would accept a docstring inherited from a base class.
        assert value.__doc__, f"headgate.{name} has no docstring"


def test_every_error_can_be_imported_from_the_package() -> None:
    """Those that the documents list, and no others."""
    text = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    tree = text.split("```")[1]
    listed = set(re.findall(r"^[│├└─ ]*([A-Z]\w+)", tree, re.MULTILINE))
    values = {name: getattr(headgate, name) for name in headgate.__all__}
    errors = {name for name, value in values.items() if inspect.isclass(value)}
    assert {name for name in errors if issubclass(values[name], Exception)} == listed


def test_version_is_the_installed_one() -> None:
    assert headgate.__version__ == version("headgate")


@pytest.mark.parametrize("flags", ["-I", "-IS"], ids=["packages installed", "bare interpreter"])
def test_import_needs_only_the_standard_library(flags: str) -> None:
    """Nothing else is there to import under `-S`, and nothing else is imported if it is there."""
    program = f"""
import sys
sys.path.insert(0, {str(SRC)!r})
before = set(sys.modules)
import headgate
for name in sorted(set(sys.modules) - before):
    if "site-packages" in (getattr(sys.modules[name], "__file__", None) or ""):
        print(name)
"""
    answer = subprocess.run(
        [sys.executable, flags, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(SRC).as_posix())
def test_source_never_runs_data_as_code(path: Path) -> None:
    """No `pickle`, `marshal` or `shelve`; no `eval` or `exec`; no `yaml.load`."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                found += [name.name for name in names]
            case ast.ImportFrom(module=str(module)):
                found.append(module)
            case ast.Call(func=ast.Name(id="eval" | "exec" as name)):
                found.append(name)
            case ast.Attribute(value=ast.Name(id="yaml"), attr="load" | "unsafe_load" as name):
                found.append(f"yaml.{name}")
    dangerous = {"eval", "exec", "marshal", "pickle", "shelve", "yaml.load", "yaml.unsafe_load"}
    assert dangerous.isdisjoint(found)


def test_wheel_holds_the_whole_package_and_its_type_marker(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {path for path in SRC.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert packed == {path.relative_to(SRC).as_posix() for path in files}
    assert "headgate/py.typed" in packed


def test_every_algorithm_is_in_the_compiled_build() -> None:
    """A file that is not compiled is called by name from those that are, and slows them down."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    hook = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    assert not hook["enable-by-default"]
    assert all((SRC / module).is_file() for module in hook["modules"])
    algorithms = {path.relative_to(SRC).as_posix() for path in SRC.glob("headgate/algorithms/*.py")}
    left_out = {"headgate/algorithms/__init__.py", "headgate/algorithms/calendar.py"}
    assert algorithms - set(hook["modules"]) == left_out


def test_sources_say_that_they_are_not_the_compiled_build() -> None:
    """Even where a compiled build is installed: whoever changes a source must see the change."""
    program = (
        f"import sys; sys.path.insert(0, {str(SRC)!r}); import headgate; print(headgate.compiled)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "False\n"


def test_sdist_holds_what_the_tests_need(tmp_path: Path) -> None:
    """Whoever packages Headgate can run its tests from there: examples and pages are tests too."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    for name in (
        "README.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "conftest.py",
        "hatch_build.py",
        "pyproject.toml",
    ):
        assert name in packed
    for folder in ("bench", "docs", "examples", "src", "tests"):
        files = {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.py")}
        assert files <= packed
