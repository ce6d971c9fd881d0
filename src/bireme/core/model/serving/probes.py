"""How a replica of a service is asked whether it has started, can take requests, and is alive. Values only.

Who asks: the agent on its node, or whoever stands in for one (`engines/`). What follows from it: `core/services`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One question to a replica, in Kubernetes' words and with its defaults: a path, a command, or only its port."""

    path: str = ""
    """GET of it on the replica's port answers 200 to 399."""
    command: tuple[str, ...] = ()
    """Run beside the replica, as its user; well if it exits with 0. Without path and command the port must answer."""
    initial_delay_s: float = 0.0
    period_s: float = 10.0
    timeout_s: float = 1.0
    success_threshold: int = 1
    failure_threshold: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """The three questions: has it started (until then nothing else is asked), can it take requests, is it alive."""

    startup: Probe = Probe(period_s=1.0, failure_threshold=1800)
    """Its period times its threshold is the time that loading a model may take."""
    readiness: Probe = Probe(period_s=2.0)
    liveness: Probe | None = None
    """Fails: the replica is ended and replaced."""


class Health(StrEnum):
    """What the probes of a replica say."""

    LOADING = "loading"
    """Its startup probe has not succeeded yet, or its job does not run yet."""
    READY = "ready"
    UNREADY = "unready"
    DEAD = "dead"
    """Its startup or liveness probe has failed for good."""


PORT_TAKEN = "port taken"
"""In the reason of a launch that was refused because somebody listens on the replica's port: it may start with another.
"""


@dataclass(frozen=True, slots=True)
class ReplicaOf:
    """Whose replica a job is, and what is its own: a number, a port, and how it is asked whether it is well."""

    service: str
    revision: int
    number: int
    port: int
    probes: Probes
