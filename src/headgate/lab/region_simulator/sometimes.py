"""Rare situations that simulations of regions must reach; see `headgate.lab.simulator.sometimes`."""

from __future__ import annotations

from enum import Enum


class RegionSometimes(Enum):
    """Each is counted when it happens; see `headgate lab simulate --regions`."""

    LOST = "a message between regions was lost"
    DOUBLED = "a message between regions arrived twice"
    CUT = "two regions could not hear each other"
    GRANTED = "a region got rights from another one"
    GRANT_AGAIN = "a grant arrived that had been counted before"
    GRANT_LATE = "a grant arrived after its window"
    GRANT_FOR_PAST = "a grant arrived for a store that had come back empty"
    ASKED_AGAIN = "an ask arrived a second time, and got the same answer"
    GIVER_EMPTY = "a store came back empty between the steps of a grant"
    NODE_DIED = "a node died between taking rights off and telling"
    TURNED = "a window turned while the store was asked"
    EMPTIED = "a store came back empty"
    EMPTIED_UNKNOWN = "a store that had come back empty allowed what nobody was told"
    KEPT = "a store came back with all it knew"
    EARLY = "a region was told of a slice that had not begun there"
    OWN_BACK = "a region was told what it had admitted itself before its store came back empty"
    AT_LIMIT = "all of a limit was used, in several regions"
    SHARE_USED = "a region was asked for more than its share"
    NO_SHARE = "a limit was so small that a region had no share of it"
