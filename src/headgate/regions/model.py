"""The regions, and how they can share limits.

Every region has its own engine and decides there: no request waits for another region. The `consistency` of a limit
says how regions share it:

- `split`: each region has a share. Shares add up to the limit, so it is never exceeded.
- `merge`: each region has the whole limit, and learns with a lag what the others admit.
- `escrow`: each region admits what it holds rights for, and regions pass rights to each other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ..algorithms.base import require_whole
from ..engines.registry import kind_for
from ..errors import ConfigError, UsageError
from ..rate import REGIONAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..algorithms import Limit
    from ..rules.model import RuleSet

MAX_REGIONS: Final = 64
MAX_WEIGHT: Final = 1_000_000
LINKED: Final = frozenset({"merge", "escrow"})
"""Modes in which regions have to communicate."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)
_REMEDY: Final = "say which regions there are with the setting 'region', or in a program with Limiter(regions=...)"


@dataclass(frozen=True, slots=True)
class Regions:
    """The region of this process, and the weight of each region.

    All regions must be configured with the same weights, so that their shares add up. A program that counts in the
    Redis or Valkey of its region's nodes can also merge limits with other regions; those nodes report what it admits.

    >>> Regions("eu", {"eu": 2, "us": 1}).others
    ('us',)
    """

    here: str
    weights: Mapping[str, int]
    board: str = field(default="", kw_only=True)
    """The board of this region's nodes, if it is not next to the counts; for programs that merge."""
    linked: bool = field(default=False, kw_only=True)
    """Whether this process exchanges counts with other regions, as a node of a service or through one."""
    in_service: bool = field(default=False, kw_only=True)
    """Whether this process is a node of a service."""
    keeps_rights: bool = field(default=False, kw_only=True)
    """Whether the engine of this process can store rights, for escrow."""

    def __post_init__(self) -> None:
        weights = {require_name(name): _weight(name, one) for name, one in self.weights.items()}
        if require_name(self.here) not in weights:
            known = ", ".join(weights) or "none"
            raise UsageError(f"{self.here!r} is not among the regions that have a weight: {known}")
        if len(weights) > MAX_REGIONS:
            raise UsageError(f"there are at most {MAX_REGIONS} regions, not {len(weights)}")
        if not sum(weights.values()):
            raise UsageError("some region needs a weight above 0")
        object.__setattr__(self, "weights", MappingProxyType(dict(sorted(weights.items()))))

    @property
    def others(self) -> tuple[str, ...]:
        """All regions but this one."""
        return tuple(name for name in self.weights if name != self.here)

    def why_not(self, mode: str) -> str | None:
        """Why a mode is not available here; `None` if it is."""
        if mode == "escrow" and not (self.in_service and self.linked):
            return "escrow takes nodes that give each other rights: write a rule, and have a service decide"
        if mode in LINKED and not (self.linked or self.in_service):
            return (
                f"{mode} takes the Redis or Valkey that the nodes of this region count in, named by its URL, such as "
                "Limiter('redis://…', regions=...); or write a rule, and have a service decide"
            )
        if mode in LINKED and not self.linked:
            return f"{mode} takes nodes that tell each other what they admit: write a rule, and have a service decide"
        if mode == "escrow" and not self.keeps_rights:
            return (
                "escrow takes counts in one store that loses all of them or none: Redis or Valkey, alone or with "
                "Sentinels, or one etcd cluster that confirms before it answers; choose another consistency"
            )
        return None


def in_program(regions: Regions, source: object) -> Regions:
    """The modes available to a program: merging requires the store of the region's nodes."""
    if regions.in_service:
        return regions
    kind = kind_for(source) if isinstance(source, str) else None
    linked = kind is not None and kind.board == "headgate.board.redis"
    return replace(regions, linked=linked)


def require_name(name: object) -> str:
    """Refuse names that cannot be part of a counter's address or a label."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"a region is named by letters, digits, '.', '_' and '-', such as eu-west, not {name!r:.80}"
        )
    return name


def _weight(name: str, weight: object) -> int:
    return require_whole(f"weight of the region {name}", weight, 0, MAX_WEIGHT)


def require_modes(regions: Regions | None, rules: RuleSet) -> None:
    """Refuse rules whose consistency is not available here."""
    for rule in rules:
        problem = why_not(regions, rule.limits)
        if problem is not None:
            raise ConfigError(f"the rule {rule.rule_id!r}: {problem}")


def why_not(regions: Regions | None, limits: Iterable[Limit]) -> str | None:
    """Why limits cannot be shared as they say; `None` if they can."""
    for limit in limits:
        mode = limit.consistency
        if mode not in REGIONAL:
            continue
        if regions is None:
            return f"consistency {mode} is for several regions, and there is one; {_REMEDY}"
        problem = regions.why_not(mode)
        if problem is not None:
            return problem
    return None
