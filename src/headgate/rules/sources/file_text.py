"""Changing one rule in a hand-written file, and nothing else in it. Pure.

In a YAML file with one rule per item of a block list, only the lines of that item are replaced, removed or added; other
comments stay. A file of any other shape (JSON, `[...]`, a single rule) is rewritten, and the caller is told that its
comments are gone. Either way the result is read again and compared with the intended rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from ...errors import ConfigError
from ..format.document import read_document
from ..format.parse import parse_rules
from ..pacing import no_pause

PLAIN: Final = re.compile(r"(?:[A-Za-z_/][A-Za-z0-9_/*.{}-]*|[0-9]+/[a-z]+)(?: [A-Za-z0-9_/.-]+)*")
"""Strings that need no quotes in any version of YAML, unless they are one of these words."""
WORDS: Final = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null"])


class NotLineEditable(Exception):  # noqa: N818 - not an error: the file is rewritten
    """The text has no block list of rules that could be edited line by line."""


def changed_text(
    text: str, changes: Mapping[str, Mapping[str, Any] | None], name: str
) -> tuple[str, bool]:
    """The text with these rules set (or, with `None`, removed), and whether its comments were kept."""
    before = rules_of(text, name) if text else {}
    try:
        edited = _line_by_line(text, changes)
        if _is_wanted(rules_of(edited, name), before, changes):
            return edited, True
    except (NotLineEditable, yaml.YAMLError, ConfigError):
        pass
    wanted = {**before, **changes}
    rules = [rule for rule in wanted.values() if rule is not None]
    return _rewritten(text, rules, name), not _has_comments(text, name)


def _is_wanted(
    found: Mapping[str, Any],
    before: Mapping[str, Any],
    changes: Mapping[str, Mapping[str, Any] | None],
) -> bool:
    """Whether all rules are as intended; changed ones may also have got the file's defaults."""
    expected = {**before, **changes}
    if found.keys() != {rule_id for rule_id, rule in expected.items() if rule is not None}:
        return False
    return all(
        rule == {**rule, **_plain(changes[rule_id])}
        if rule_id in changes
        else rule == before[rule_id]
        for rule_id, rule in found.items()
    )


def rules_of(text: str, name: str) -> dict[str, Any]:
    """Every rule in the text by its id, with defaults filled in; raises `RulesError`."""
    rules = parse_rules(text, name).rules
    return {rule.rule_id: json.loads(json.dumps(_plain(rule.document))) for rule in rules}


def dump(rules: object) -> str:
    """Plain values as YAML that every parser reads in the same way."""
    return yaml.dump(rules, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def _line_by_line(text: str, changes: Mapping[str, Mapping[str, Any] | None]) -> str:
    items = _items(text)
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    dash = items[0].column
    for item in reversed(items):
        if item.rule_id in changes:
            rule = changes[item.rule_id]
            lines[item.first : item.last + 1] = [] if rule is None else _as_item(rule, item.column)
    known = {item.rule_id for item in items}
    new = [rule for rule_id, rule in changes.items() if rule is not None and rule_id not in known]
    if new:
        where = _end_of_items("".join(lines))
        lines[where:where] = [line for rule in new for line in _as_item(rule, dash)]
    return "".join(lines)


class _Item:
    """The position of a rule: its lines, from 0, and the column of its dash."""

    def __init__(self, node: yaml.MappingNode, lines: list[str]) -> None:
        self.rule_id = next(
            (str(value.value) for key, value in node.value if key.value == "rule_id"), ""
        )
        self.first = node.start_mark.line
        while not lines[self.first].lstrip().startswith("-"):
            self.first -= 1
            if self.first < 0:
                raise NotLineEditable
        self.column = len(lines[self.first]) - len(lines[self.first].lstrip())
        self.last = _last_line(node)
        while self.last > self.first and not lines[self.last].strip():
            self.last -= 1


def _items(text: str) -> list[_Item]:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if isinstance(root, yaml.MappingNode):
        root = next((value for key, value in root.value if key.value == "rules"), None)
    if not isinstance(root, yaml.SequenceNode) or root.flow_style or not root.value:
        raise NotLineEditable
    lines = text.splitlines()
    if not all(isinstance(node, yaml.MappingNode) and not node.flow_style for node in root.value):
        raise NotLineEditable
    return [_Item(node, lines) for node in root.value]


def _end_of_items(text: str) -> int:
    return _items(text)[-1].last + 1


def _last_line(node: yaml.Node) -> int:
    """The last line with content of a node; a block's end mark is where the next thing begins."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style:
        return max(_last_line(part) for pair in node.value for part in pair)
    if isinstance(node, yaml.SequenceNode) and not node.flow_style:
        return max(map(_last_line, node.value))
    if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
        return int(node.end_mark.line) - 1
    return int(node.end_mark.line)


def _as_item(rule: Mapping[str, Any], column: int) -> list[str]:
    indent = " " * column
    body = dump(_plain(rule)).splitlines(keepends=True)
    first, *rest = body
    return [f"{indent}- {first}", *(f"{indent}  {line}" for line in rest)]


def _rewritten(text: str, rules: Sequence[Mapping[str, Any]], name: str) -> str:
    """Rewrite the whole file, from its values."""
    found = read_document(text, name, pause=no_pause).value if text else None
    others = found if isinstance(found, dict) and "rules" in found else {}
    # The defaults are already filled into every rule.
    whole = {key: value for key, value in others.items() if key not in ("defaults", "rules")}
    whole["rules"] = _plain(rules)
    if _is_json(text, name):
        return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
    return dump(whole)


def _is_json(text: str, name: str) -> bool:
    """Decided as in `read_document`."""
    if name.lower().endswith((".json", ".yaml", ".yml")):
        return name.lower().endswith(".json")
    return text.lstrip()[:1] in ("{", "[") or text.lstrip()[:2] == "//"


def _has_comments(text: str, name: str) -> bool:
    return ("//" if _is_json(text, name) else "#") in text


def _plain(value: Any) -> Any:
    """Mappings and tuples as plain dicts and lists."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


class _Dumper(yaml.SafeDumper):
    """Quotes every string that some YAML parser could misread."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: FBT001, FBT002
        super().increase_indent(flow, False)  # noqa: FBT003 - lists are indented, as is usual in hand-written files

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    is_plain = PLAIN.fullmatch(value) is not None and value.lower() not in WORDS
    style = None if is_plain else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
