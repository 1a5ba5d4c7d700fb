"""The settings of regions, as text, and their meaning."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from .._query import whole
from ..engines.registry import kind_of
from ..errors import ConfigError
from .model import Regions, require_name
from .opening import keeps_rights

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NODES: Final = frozenset({"headgate", "headgates"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionsSettings:
    """The regions, and how to reach their nodes."""

    regions: Regions
    urls: Mapping[str, str]
    """URLs of the other regions, by name; empty if regions do not communicate."""
    interval_us: int
    """The time between two messages to another region."""


def read_regions(
    here: str, others: str, weights: Iterable[str], interval: float, engine: str = "memory://"
) -> RegionsSettings | None:
    """Read the settings `region`, `regions`, `region_weights` and `region_interval`, for an engine.

    >>> read_regions("eu", "us=headgate://10.0.0.7:6400", ["eu=2", "us=1"], 0.2).regions.others
    ('us',)
    """
    urls = _urls(others)
    weighed = dict(_weight(one) for one in weights)
    if not here:
        if urls or weighed:
            raise ConfigError("there are other regions, and this one has no name; set region, too")
        return None
    if here in urls:
        raise ConfigError(
            f"regions are the others, and {here} is this one; leave it out of regions"
        )
    named = [*urls, require_name(here)]
    unknown = [name for name in weighed if urls and name not in named]
    if unknown:
        raise ConfigError(
            f"the region {unknown[0]!r} has a weight, and no nodes; add it to regions, such as "
            f"{unknown[0]}=headgate://host:6400"
        )
    known = dict.fromkeys([*named, *weighed], 1) | weighed
    if len(known) == 1:
        raise ConfigError(
            f"there is no region but {here}; name the others in regions, or in region_weights"
        )
    regions = Regions(
        here, known, linked=bool(urls), keeps_rights=keeps_rights(engine), in_service=True
    )
    return RegionsSettings(
        regions=regions, urls=MappingProxyType(urls), interval_us=round(interval * 1_000_000)
    )


def _urls(text: str) -> dict[str, str]:
    """`us=headgate://host:6400,host:6400 asia=headgates://…`, separated by any white space."""
    urls: dict[str, str] = {}
    for word in text.split():
        name, equals, url = word.partition("=")
        if not equals or url.partition("://")[0] not in NODES:
            raise ConfigError(
                "a region is written with its nodes, such as us=headgate://10.0.0.7:6400 "
                f"(headgates:// with TLS); see the one that begins with {name[:40]!r}"
            )
        kind_of(url).describe(url)  # Raises if it cannot be parsed.
        if urls.setdefault(require_name(name), url) != url:
            raise ConfigError(
                f"the region {name} is there twice; write all of its nodes in one URL"
            )
    return urls


def _weight(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    try:
        weight = whole(number.strip())
    except ValueError:
        raise ConfigError(f"a weight is written as eu=2, not as {text!r:.80}") from None
    return require_name(name.strip()), weight
