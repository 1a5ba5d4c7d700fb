"""`headgate rules list|diff|push|set|delete|history|rollback`: what they say, and with which exit code."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from headgate import RuleSet
from headgate.cli import main
from headgate.testing import ManualClock

RULES = """\
rules:
  - rule_id: login
    identifier: ip_address
    rate: 10/minute
    match: {path_pattern: /login, methods: [POST]}
  - rule_id: all
    identifier: ip_address
    rate: 100/minute
"""


class Shell:
    """A command line whose output a test can look at."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.code = 0
        self.out = ""
        self.err = ""

    def __call__(self, *words: str | Path) -> str:
        self.code = main(["rules", *map(str, words)], clock=ManualClock(1_000_000_000))
        self.out, self.err = self._capsys.readouterr()
        return self.out

    def json(self, *words: str | Path) -> Any:
        return json.loads(self(*words, "--json"))


@pytest.fixture
def shell(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Shell:
    monkeypatch.chdir(tmp_path)
    Path("rules.yaml").write_text(RULES)
    return Shell(capsys)


def test_a_calendar_limit_is_not_listed_in_seconds(shell: Shell) -> None:
    Path("rules.yaml").write_text(
        "{rule_id: all, identifier: ip_address, limits: [5/second, {limit: 9, calendar: month}]}"
    )
    assert "5/second (sliding_window), 9/calendar month (fixed_window)  everything" in shell(
        "list", "rules.yaml"
    )


def test_a_rule_is_set_listed_and_deleted(shell: Shell) -> None:
    assert shell("set", "rules.yaml", "login", "rate=20/minute", "--author", "ann@host") == (
        "1 changed\n  ~ login\nrevision 1 of file:rules.yaml\n"
    )
    assert shell.code == 0
    assert shell("list", "rules.yaml") == (
        "file:rules.yaml: 2 rules, revision 1 by ann@host, 2001-09-09 01:46:40Z\n"
        "\n"
        "RULE   PRIORITY  LIMITS      ABOUT\n"
        "all    100       100/minute  everything\n"
        "login  100       20/minute   POST /login\n"
    )
    assert shell(
        "delete", "rules.yaml", "login", "--author", "bob@host", "--note", "enough"
    ).endswith("revision 2 of file:rules.yaml\n")
    assert shell("history", "rules.yaml") == (
        "REVISION  TIME                  AUTHOR    ACTION  WHAT\n"
        "2         2001-09-09 01:46:40Z  bob@host  delete  login: enough\n"
        "1         2001-09-09 01:46:40Z  ann@host  set     login\n"
    )
    assert shell("rollback", "rules.yaml", "0").endswith("revision 3 of file:rules.yaml\n")
    assert Path("rules.yaml").read_text() == RULES


def test_the_version_is_the_same_word_for_the_same_rules_everywhere(shell: Shell) -> None:
    made = shell.json("set", "rules.yaml", "login", "rate=20/minute")
    listed = shell.json("list", "rules.yaml")
    checked = shell.json("check", "rules.yaml")
    assert made["version"] == listed["source"]["version"] == checked["version"]


def test_the_author_is_who_is_at_the_keyboard(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "carla")
    monkeypatch.setattr("socket.gethostname", lambda: "desk")
    shell("set", "rules.yaml", "all", "shadow=true")
    (entry,) = shell.json("history", "rules.yaml")
    assert entry["author"] == "carla@desk"
    assert entry["changes"][0]["after"]["shadow"] is True


def test_what_a_store_has_can_be_pulled_checked_and_pushed_again(shell: Shell) -> None:
    shell("set", "rules.yaml", "all", "rate=11/minute", "--author", "ann\udcff@desk")
    version = RuleSet.parse(Path("rules.yaml").read_text()).version
    for name in ("pulled.yaml", "pulled.json"):
        assert f"2 rules of file:rules.yaml, version {version}" in shell("pull", "rules.yaml", name)
        assert shell("check", name) == f"{name}: 2 rules, version {version}\n"
        assert shell("diff", "rules.yaml", name) == "nothing changed\n"
        assert shell("push", name, "rules.yaml", "--dry-run").startswith("nothing changed")
    assert shell("pull", "rules.yaml", "pulled.yaml") == ""
    assert shell.code == 1
    assert "pulled.yaml already exists; choose another name, or use --force" in shell.err
    wrote = shell.json("pull", "rules.yaml", "pulled.yaml", "--force")
    assert (wrote["wrote"], wrote["rules"], wrote["revision"]) == ("pulled.yaml", 2, 1)
    assert shell("pull", "rules.yaml") == Path("pulled.yaml").read_text()


def test_what_list_prints_as_json_is_a_rules_file(shell: Shell) -> None:
    Path("listed.json").write_text(shell("list", "rules.yaml", "--json"))
    version = RuleSet.parse(RULES).version
    assert shell("check", "listed.json") == f"listed.json: 2 rules, version {version}\n"


def test_explain_test_and_check_work_on_a_url(shell: Shell) -> None:
    for where in ("rules.yaml", "file:rules.yaml", Path("rules.yaml").absolute().as_uri()):
        shown = shell("explain", where, "--path", "/login", "--method", "POST", "--ip", "192.0.2.1")
        assert "It is counted by" in shown
        assert shell.json("check", where)["rules"] == 2
    Path("tests.yaml").write_text(
        RULES + "tests:\n  - {request: {path: /x, ip: 192.0.2.1}, matches: [all]}\n"
    )
    assert shell("test", "file:rules.yaml", "--tests", "tests.yaml").endswith(
        "1 case, all passed\n"
    )
    shell("test", "file:rules.yaml")
    assert (shell.code, "no tests" in shell.err, "--tests" in shell.err) == (2, True, True)


def test_a_push_says_what_changes(shell: Shell) -> None:
    Path("new.yaml").write_text(RULES.replace("login", "search"))
    assert shell("push", "new.yaml", "rules.yaml", "--dry-run") == (
        "1 added, 1 removed\n  + search\n  - login\nnothing was written: this is a dry run\n"
    )
    assert Path("rules.yaml").read_text() == RULES
    assert shell.json("push", "new.yaml", "file:rules.yaml", "--note", "why") == {
        "url": "file:rules.yaml",
        "action": "push",
        "made": True,
        "revision": 1,
        "version": RuleSet.parse(Path("new.yaml").read_text()).version,
        "forced": False,
        "added": ["search"],
        "removed": ["login"],
        "changed": [],
        "warnings": [],
    }
    assert shell("push", "new.yaml", "rules.yaml") == "nothing changed\n"
    assert len(shell.json("history", "rules.yaml")) == 1


def test_rules_can_come_from_stdin(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = type("Stdin", (), {"buffer": Path("rules.yaml").open("rb")})  # noqa: SIM115
    monkeypatch.setattr(sys, "stdin", stdin)
    shell("push", "-", "copy.yaml")
    stdin.buffer.close()  # type: ignore[attr-defined]
    assert shell.code == 0
    assert Path("copy.yaml").read_text() == RULES


def test_a_bad_push_names_every_problem_and_changes_nothing(shell: Shell) -> None:
    Path("bad.yaml").write_text("rules:\n  - rule_id: a\n    rate: often\n")
    answer = shell.json("push", "bad.yaml", "rules.yaml")
    assert shell.code == 1
    assert answer["error"] == "bad rules"
    assert {problem["line"] for problem in answer["problems"]} == {2, 3}
    assert shell.err.count("headgate: bad.yaml:") == len(answer["problems"]) > 1
    assert Path("rules.yaml").read_text() == RULES
    assert not Path("rules.yaml.history").exists()


def test_the_guard_asks_for_force(shell: Shell) -> None:
    assert shell("delete", "rules.yaml", "login", "all") == ""
    assert shell.code == 1
    assert "no rule is left, so nothing would be limited" in shell.err
    assert "run it again with --allow-empty; nothing was written" in shell.err
    assert Path("rules.yaml").read_text() == RULES
    shell("set", "rules.yaml", "all", "rate=10000/minute")
    assert shell.code == 1
    assert "100-fold or more (all 100-fold)" in shell.err
    assert "run it again with --force; nothing was written" in shell.err
    shell("set", "rules.yaml", "all", "rate=10000/minute", "--force")
    assert shell.code == 0
    assert "set (forced)" in shell("history", "rules.yaml")
    shell("delete", "rules.yaml", "login", "all", "--force")
    assert shell.code == 1
    assert "2 removed" in shell("delete", "rules.yaml", "login", "all", "--allow-empty")
    assert "0 rules" in shell("list", "rules.yaml")
    assert "revision 3" in shell("push", "rules.yaml", "rules.yaml", "--allow-empty")


def test_a_change_that_fails_is_not_shown_as_if_it_was_made(shell: Shell) -> None:
    Path("rules.yaml.history").mkdir()
    shell("set", "rules.yaml", "login", "rate=11/minute")
    assert (shell.code, shell.out) == (1, "")
    assert "rules.yaml.history: Is a directory; nothing was written" in shell.err


def test_a_conflict_is_exit_code_1_and_names_the_other(shell: Shell) -> None:
    shell("set", "rules.yaml", "all", "rate=90/minute", "--author", "ann@host")
    answer = shell.json("push", "rules.yaml", "rules.yaml", "--expect", "0")
    assert shell.code == 1
    assert answer["error"] == "conflict"
    assert answer["first"]["author"] == "ann@host"
    assert "is at revision 1, by ann@host, not at 0" in shell.err


def test_a_diff_says_yes_or_no_by_its_exit_code(shell: Shell) -> None:
    Path("new.yaml").write_text(RULES.replace("10/minute", "11/minute", 1))
    assert shell("diff", "rules.yaml", "rules.yaml") == "nothing changed\n"
    assert shell.code == 0
    shown = shell("diff", "rules.yaml", "new.yaml")
    assert shell.code == 1
    assert '  -  "rate": "10/minute",\n' in shown
    assert '  +  "rate": "11/minute",\n' in shown
    answer = shell.json("diff", "rules.yaml", "new.yaml")
    assert (answer["same"], [each["rule_id"] for each in answer["changes"]]) == (False, ["login"])


def test_one_revision_can_be_shown_in_full(shell: Shell) -> None:
    shell("set", "rules.yaml", "all", "rate=90/minute", "--author", "ann@host", "--note", "calm")
    shown = shell("history", "rules.yaml", "1")
    assert shown.startswith("revision 1: set by ann@host, 2001-09-09 01:46:40Z\ncalm\n\nrule all\n")
    assert '  -  "rate": "100/minute"\n' in shown
    assert '  +  "rate": "90/minute"\n' in shown


@pytest.mark.parametrize(
    "words, message",
    [
        ("delete rules.yaml logn", "file:rules.yaml has no rule 'logn' (did you mean 'login'?)"),
        ("set rules.yaml login rate", "a field must have the form FIELD=VALUE"),
        ("set rules.yaml new rate=1/s", "has no rule 'new'; give a FILE to add one"),
        ("set rules.yaml login rule_id=zzz", "the id of 'login' cannot be changed; add a rule"),
        ("set rules.yaml login rule_id=", "the id of 'login' cannot be changed; add a rule"),
        ("history rules.yaml 9", "the history of file:rules.yaml has no revision 9"),
        ("history rules.yaml --limit 0", "--limit must be at least 1, not 0"),
        ("rollback rules.yaml", "file:rules.yaml has no history"),
        ("push rules.yaml", "the following arguments are required: URL"),
    ],
)
def test_wrong_usage_is_exit_code_2(shell: Shell, words: str, message: str) -> None:
    assert shell(*words.split()) == ""
    assert shell.code == 2
    assert message in shell.err


@pytest.mark.parametrize(
    "words, message",
    [
        ("list missing.yaml", "missing.yaml cannot be read: no such file"),
        ("list redis://host", "'redis' is not a source of rules"),
        ("list etcd://ann:canary@localhost:1?timeout=0.1", "does not answer"),
        ("push missing.yaml rules.yaml", "missing.yaml cannot be read: no such file"),
    ],
)
def test_what_cannot_be_reached_is_exit_code_1(shell: Shell, words: str, message: str) -> None:
    assert shell(*words.split()) == ""
    assert shell.code == 1
    assert message in shell.err
    assert "canary" not in shell.err


def test_text_that_could_steer_a_terminal_is_shown_as_text(shell: Shell) -> None:
    shell("set", "rules.yaml", "all", "rate=90/minute", "--author", "eve\x1b[2J", "--note", "a\nb")
    shown = (
        shell("history", "rules.yaml")
        + shell("history", "rules.yaml", "1")
        + shell("list", "rules.yaml")
    )
    assert "\x1b" not in shown
    assert r"eve\x1b[2J" in shown


def test_the_same_commands_work_on_servers(shell: Shell, rules_url: str) -> None:
    answer = shell.json("push", "rules.yaml", rules_url, "--author", "ann@host")
    assert (answer["made"], answer["revision"], answer["added"]) == (True, 1, ["all", "login"])
    shell("set", rules_url, "login", "rate=20/minute")
    assert shell.code == 0
    shell("diff", "rules.yaml", rules_url)
    assert shell.code == 1
    assert [entry["action"] for entry in shell.json("history", rules_url)] == ["set", "push"]
    shell("rollback", rules_url)
    shell("diff", "rules.yaml", rules_url)
    assert shell.code == 0
    listed = shell.json("list", rules_url)
    assert listed["source"]["revision"] == 3
    assert {rule["rule_id"] for rule in listed["rules"]} == {"all", "login"}
    assert "It is counted by" in shell("explain", rules_url, "--path", "/login", "--method", "POST")
    assert shell.json("check", rules_url)["rules"] == 2
    Path("tests.yaml").write_text(
        RULES + "tests:\n  - {request: {path: /x, ip: 192.0.2.1}, matches: [all]}\n"
    )
    assert "1 case, all passed" in shell("test", rules_url, "--tests", "tests.yaml")
    shell("pull", rules_url, "pulled.yaml")
    assert shell("diff", "pulled.yaml", rules_url) == "nothing changed\n"


def test_every_change_can_insist_on_the_revision_that_was_looked_at(shell: Shell) -> None:
    shell("set", "rules.yaml", "login", "rate=20/minute")
    for change in (("set", "rules.yaml", "all", "rate=9/minute"), ("delete", "rules.yaml", "all"),
                   ("rollback", "rules.yaml"), ("push", "rules.yaml", "rules.yaml")):  # fmt: skip
        shell(*change, "--expect", "0")
        assert shell.code == 1
        assert "is at revision 1" in shell.err
    shell("delete", "rules.yaml", "login", "--expect", "1")
    assert (shell.code, shell.err) == (0, "")
