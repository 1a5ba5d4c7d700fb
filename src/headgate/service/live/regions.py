"""What the feed says of regions: how old what each knows of this one is, and what became of rights (escrow).

Rights are counted by all nodes of the region, each since it started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...regions.promises import promise_of

if TYPE_CHECKING:
    from ...regions.rights_figures import RightsFigures
    from ..node import Node
    from .hub import Frame

US: Final = 1_000_000
LATELY: Final = 3_600.0
"""For so many seconds lost units are a warning, as in `deploy/prometheus/alerts.yml`."""


def regions_frame(node: Node, rights: RightsFigures | None) -> Frame | None:
    """The other regions, and `rights` where a rule is kept by escrow; `None` if regions tell each other nothing."""
    regions, exchange = node.regions, node.exchange
    if regions is None or exchange is None:
        return None
    others = [
        {"region": one.region, "up": one.up, "lag": one.lag_seconds, "heard": one.heard_seconds}
        for one in exchange.links()
    ]
    return {
        "here": regions.here,
        "others": others,
        "rights": None if rights is None else _rights(rights, regions.others),
    }


def cut_off(node: Node) -> Frame:
    """Facts for the verdict: which regions cannot be reached, and what holds meanwhile."""
    regions, exchange = node.regions, node.exchange
    links = () if exchange is None else exchange.links()
    cut = tuple(one.region for one in links if not one.up)
    if regions is None or not cut:
        return {}
    return {"regions_cut": cut, "regions_promise": promise_of("merge", regions, cut_off=True)}


def lately_lost(rights: RightsFigures | None, now: float) -> int:
    """Units that were lost since nodes started; 0 if none was in the last hour."""
    if rights is None or rights.lost_at_us is None or now - rights.lost_at_us / US > LATELY:
        return 0
    return rights.lost


def _rights(rights: RightsFigures, others: tuple[str, ...]) -> Frame:
    return {
        "lost": rights.lost,
        "lost_at": None if rights.lost_at_us is None else rights.lost_at_us / US,
        "others": [
            {
                "region": region,
                "asked": rights.asked[region],
                "unanswered": rights.unanswered[region],
                "received": rights.received[region],
                "given": rights.given[region],
            }
            for region in others
        ],
    }
