"""scripts/check-layout finds what it is there to find."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "check-layout"


def problems(root: Path) -> list[str]:
    run = subprocess.run(
        [sys.executable, SCRIPT, root], capture_output=True, text=True, check=False
    )
    assert run.returncode == (1 if run.stdout else 0)
    assert run.stderr == ""
    return run.stdout.splitlines()


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_a_tidy_tree_has_no_problems(tmp_path: Path) -> None:
    write(tmp_path, "src/headgate/rules/model.py", "class Rule: ...\n" + "\n" * 449)
    write(
        tmp_path,
        "README.md",
        "x" * 120 + "\n| " + "wide " * 30 + "|\n```\n" + "y" * 200 + "\n```\n",
    )
    assert problems(tmp_path) == []


def test_what_is_too_large_or_too_wide_is_found(tmp_path: Path) -> None:
    write(tmp_path, "src/headgate/long.py", "\n" * 451)
    write(tmp_path, "src/headgate/lua/wide.lua", "-- " + "x" * 118)
    write(tmp_path, "README.md", "x" * 121)
    assert problems(tmp_path) == [
        "src/headgate/long.py: 451 lines; split it, 450 is the most",
        "src/headgate/lua/wide.lua:1: 121 columns; 120 are the most",
        "README.md:1: 121 columns; 120 are the most",
    ]


def test_wide_lines_of_tests_are_found_but_for_those_of_a_text(tmp_path: Path) -> None:
    wide = "x" * 121
    write(
        tmp_path, "tests/test_one.py", f'"""Prose.\n\n{wide}\n"""\n\nPRINTED = """\n{wide}\n"""\n'
    )
    write(tmp_path, "bench/one.py", f"# {wide}\n")
    assert problems(tmp_path) == [
        "tests/test_one.py:3: 121 columns; 120 are the most",
        "bench/one.py:1: 123 columns; 120 are the most",
    ]


def test_a_full_room_is_found(tmp_path: Path) -> None:
    for number in range(9):
        write(tmp_path, f"src/headgate/service/m{number}.py", "")
    (problem,) = problems(tmp_path)
    assert problem.startswith("src/headgate/service: 9 modules directly in it (m0, m1, ")


def test_a_class_name_that_means_two_things_is_found(tmp_path: Path) -> None:
    write(tmp_path, "src/headgate/one.py", "class Answer: ...\n")
    write(tmp_path, "src/headgate/two.py", "class Answer: ...\n")
    assert problems(tmp_path) == [
        "class Answer is defined 2 times: src/headgate/one.py, src/headgate/two.py"
    ]


def test_lines_that_twins_have_in_common_are_counted(tmp_path: Path) -> None:
    """`async` and `await` make no difference, and imports do not count."""
    imports = "".join(f"import m{number}\n" for number in range(40))
    body = "".join(f"    await call({number})\n" for number in range(9))
    awaiting = f"{imports}async def acquire() -> None:\n{body}"
    write(tmp_path, "src/headgate/held_async.py", awaiting)
    write(tmp_path, "src/headgate/held.py", awaiting.replace("async ", "").replace("await ", ""))
    assert problems(tmp_path) == [
        "src/headgate/held.py: 5 runs of 6 lines are in held_async.py, too; write them once, 4 are the most"
    ]
