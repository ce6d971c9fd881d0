"""Which jobs are started again after a failure, how often, and what was tried: rules and facts.

Values only. Rules are operators' (`healing.toml`), a part of the healing policy; what was seen of an end is told by the
daemon (`InquestHeld`); what was decided about it is a part of the job's story (`JobEnding.verdict`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Which(StrEnum):
    """The jobs that a rule has started again."""

    ASKED = "asked"
    """Those that say --requeue, or `#BIREME --heal=restart`."""
    ALL = "all"
    """Batch jobs that do not say --no-requeue."""
    NONE = "none"
    """None, whatever they say."""


RSC1_PER_1000_NODE_DAYS = 6.50
"""Failures of jobs by infrastructure: Meta's cluster RSC-1, arXiv:2410.21680."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRule:
    name: str = "default"
    partitions: tuple[str, ...] = ()
    """None: all."""
    qos: tuple[str, ...] = ()
    which: Which = Which.ASKED
    most: int = 5
    """Restarts of a job of few nodes within `within_s`; of many nodes as many more as their hardware brings about
    (`judging.most_for`)."""
    within_s: int = 86_400
    lost_gpu_hours: float | None = None
    """Work of one job that may be lost within `within_s`, this end included: beyond it people are asked."""
    backoff_s: int = 10
    """So long it waits before it is started again after a restart that got nowhere, doubled each time."""
    backoff_most_s: int = 600
    unexplained: int = 1
    """Restarts after an end that nothing explains, until it has saved its work again."""
    spares: str = ""
    """A reservation whose nodes are spare: open to jobs that are started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One start of a job that failed, and was looked into."""

    generation: int
    cause: str
    nodes: tuple[str, ...]
    at: float
    lost_gpu_s: float = 0.0
    restarted: bool = False


@dataclass(frozen=True, slots=True)
class NodesBack:
    """Nodes that a job may have again."""

    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobsAway:
    """Jobs that are kept from a node."""

    jobs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What comes of the end of a start that was looked into."""

    restart: bool
    text: str
    """Why, as a sentence."""
    tried: Try
    without: tuple[str, ...] = ()
    """Nodes that it is not started on again."""
    not_before: float | None = None
