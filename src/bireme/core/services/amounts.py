"""How many replicas a revision may have beyond those wanted, or be short of, as Kubernetes rounds it. Pure numbers."""

from __future__ import annotations

from typing import NamedTuple

from bireme.core.model.serving.scaling import Scaling
from bireme.core.model.serving.services import Amount, Service, Updating


class Leeway(NamedTuple):
    """How far an update may go from the number that is wanted."""

    surge: int
    unavailable: int


def leeway(updating: Updating, wanted: int) -> Leeway:
    """Per cent of surge are rounded up, of unavailable down; where both come to nought, one may be unavailable."""
    surge, unavailable = _up(updating.surge, wanted), _down(updating.unavailable, wanted)
    return Leeway(surge, unavailable if surge or unavailable else 1)


def canary_share(percent: int, wanted: int) -> int:
    """How many of the wanted replicas a canary with this part of the requests needs: one at least."""
    return max(1, -(-wanted * percent // 100)) if wanted else 0


def bounds(scaling: Scaling) -> tuple[int, int]:
    """The fewest and the most replicas that the policy ever asks for, whatever the hour."""
    least = [scaling.replicas_min, *(each.replicas_min for each in scaling.shifts if each.replicas_min is not None)]
    most = [scaling.replicas_max, *(each.replicas_max for each in scaling.shifts if each.replicas_max is not None)]
    return min(least), max(*most, *least)


def autoscales(scaling: Scaling) -> bool:
    """Whether load or the hour may change the number of replicas."""
    least, most = bounds(scaling)
    return least < most


def first_wanted(service: Service | None, scaling: Scaling) -> int:
    """How many a new revision is to have: as many as there are, within its bounds; one at least, to see it work."""
    if not autoscales(scaling):
        return scaling.replicas_max
    so_far = service.wanted if service is not None else 0
    return max(1, min(max(so_far, scaling.replicas_min), bounds(scaling)[1]))


def is_paused(service: Service) -> bool:
    """Somebody said that it is to have no replicas: no request wakes it, until somebody says otherwise."""
    return not service.wanted and (service.fixed or not bounds(service.target.spec.scaling)[1])


def _up(amount: Amount, wanted: int) -> int:
    return -(-wanted * amount.number // 100) if amount.percent else amount.number


def _down(amount: Amount, wanted: int) -> int:
    return wanted * amount.number // 100 if amount.percent else amount.number
