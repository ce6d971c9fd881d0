"""What a policy counts when it does not say: its default target. Who asks: `advise`, and whoever makes a service."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from bireme.core.model.serving.scaling import Measure, Scaling, ScalingTarget

CONCURRENCY = 16.0
"""Requests at once for each replica, where nothing else is said. Servers that batch their requests on a GPU answer so
many at hardly less speed each; one that cannot says so with `--target-concurrency` or `--max-concurrency`."""
HEADROOM = 0.7
"""Of the requests that a replica may have at once (`--max-concurrency`): the next is to be there before they wait."""

_DEFAULT = (ScalingTarget(Measure.CONCURRENCY, CONCURRENCY),)


def targets_of(policy: Scaling) -> tuple[ScalingTarget, ...]:
    """The targets of this policy, or the default."""
    return policy.targets or _DEFAULT


def with_default_target(policy: Scaling, max_concurrency: int | None) -> Scaling:
    """A policy without targets, for replicas that take at most so many requests at once."""
    if policy.targets or max_concurrency is None:
        return policy
    return replace(policy, targets=(ScalingTarget(Measure.CONCURRENCY, max(max_concurrency * HEADROOM, 1.0)),))


def polled(targets: Iterable[ScalingTarget]) -> tuple[ScalingTarget, ...]:
    """Targets whose figures have to be asked for: nobody tells them by himself."""
    return tuple(target for target in targets if target.measure in (Measure.METRIC, Measure.QUERY))
