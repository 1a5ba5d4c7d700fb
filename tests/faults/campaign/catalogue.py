"""All faults of the campaign, and the fleet that each needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.faults.campaign import (  # They put their faults into the catalogue.
    etcd_faults,  # noqa: F401
    node_faults,  # noqa: F401
    pairs,  # noqa: F401
    pressure,  # noqa: F401
)
from tests.faults.campaign.etcd_fleet import ETCD, etcd_fleet
from tests.faults.campaign.faults import FAULTS
from tests.faults.campaign.fleet import fleet

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tests.faults.campaign.faults import RealFault
    from tests.faults.campaign.fleet import Fleet

__all__ = ["FAULTS", "fleet_for"]


def fleet_for(fault: RealFault) -> AbstractContextManager[Fleet]:
    """A store and nodes that this fault can break."""
    settings = dict(fault.settings)
    if fault.topology in ETCD:
        return etcd_fleet(fault.topology, fault.policy, fault.engine, **settings)
    return fleet(fault.topology, fault.policy, fault.engine, by_name=fault.by_name, **settings)
