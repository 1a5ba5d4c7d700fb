"""A tree in memory, with the same transactions as the real ones, and failures wherever a test wants them."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from headgate.rules.sources.base import Edit, RuleChange, Snapshot, SourceError
from headgate.rules.sources.tree import TreeStore
from headgate.rules.sources.tree_nodes import ConcurrentChange, State, TreeNode, Write


class Crash(BaseException):
    """The editor's process dies here."""


class Shared:
    """What all clients see."""

    def __init__(self) -> None:
        self.version = 0
        self.nodes: dict[tuple[str, str], TreeNode] = {}

    def put(self, kind: str, name: str, data: bytes | None) -> None:
        """As any tool could."""
        self.version += 1
        if data is None:
            self.nodes.pop((kind, name), None)
        else:
            self.nodes[kind, name] = TreeNode(data, self.version)


class MemoryTree(TreeStore):
    """One client. `before` and `after` are called around every transaction, with its number."""

    max_value_bytes: ClassVar = 2_000
    max_transaction_bytes: ClassVar = 4_000
    max_transaction_writes: ClassVar = 10

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.transactions = 0
        self.before: Callable[[int], None] = lambda _number: None
        self.after: Callable[[int], None] = lambda _number: None
        self.in_touch = True

    def __str__(self) -> str:
        return "memory"

    def watch(self, notify: Callable[[], None]) -> None:
        self.notify = notify

    def close(self) -> None:
        pass

    def again(self) -> "MemoryTree":
        return MemoryTree(self.shared)

    def _load(self) -> State:
        nodes = self.shared.nodes
        rules = {name: node for (kind, name), node in nodes.items() if kind == "rule"}
        return State(self.shared.version, rules, nodes.get(("head", "")))

    def _transact(
        self, writes: Sequence[Write], head: TreeNode | None, new_head: bytes | None
    ) -> int:
        self.transactions += 1
        number = self.transactions
        assert len(writes) < self.max_transaction_writes
        assert sum(len(write.data or b"") for write in writes) <= self.max_transaction_bytes
        self.before(number)
        nodes = self.shared.nodes
        found = [nodes.get((write.kind, write.name)) for write in writes]
        if nodes.get(("head", "")) != head or found != [write.node for write in writes]:
            raise ConcurrentChange
        for write in writes:
            self.shared.put(write.kind, write.name, write.data)
        if new_head is not None:
            self.shared.put("head", "", new_head)
        self.after(number)
        return self.shared.version

    def _keep_part(self, name: str, data: bytes) -> None:
        self.shared.put("entry", name, data)

    def _entry_names(self) -> list[str]:
        return [name for kind, name in self.shared.nodes if kind == "entry"]

    def _entries(self, names: Sequence[str]) -> list[bytes]:
        try:
            return [self.shared.nodes["entry", name].data for name in names]
        except KeyError:
            raise SourceError("missing", transient=False) from None

    def _forget(self, names: Sequence[str]) -> None:
        for name in names:
            self.shared.put("entry", name, None)


def rule(rule_id: str, rate: str = "10/minute", **fields: object) -> dict[str, object]:
    return {"rule_id": rule_id, "identifier": "ip_address", "rate": rate, **fields}


def an_edit(
    store: TreeStore,
    snapshot: Snapshot,
    wanted: Mapping[str, dict[str, object] | None],
    *,
    author: str = "ann",
    forced: bool = False,
) -> Edit:
    """Put these rules in, or with `None` take them out."""
    have = store.rules_in(snapshot)
    changes = []
    for rule_id, document in wanted.items():
        name, before = have.get(rule_id, (store.name_for(rule_id), None))
        after = None if document is None else json.dumps(document)
        changes.append(RuleChange(rule_id=rule_id, name=name, before=before, after=after))
    return Edit(action="push", author=author, at=time.time(), changes=tuple(changes), forced=forced)
