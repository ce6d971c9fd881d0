"""How tasks go over nodes, sockets and cores (`--distribution`), as data. Parsed by `slurm/distribution.py`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class NodeMethod(StrEnum):
    """How tasks go over nodes."""

    BLOCK = "block"
    CYCLIC = "cyclic"
    PLANE = "plane"
    ARBITRARY = "arbitrary"


class BindMethod(StrEnum):
    """How a node's allocated CPUs go over sockets (second level) and cores (third) for binding."""

    BLOCK = "block"
    CYCLIC = "cyclic"
    FCYCLIC = "fcyclic"


@dataclass(frozen=True, slots=True)
class Distribution:
    """None means the default of that level, written `*`. `pack` None: what the cluster does, which is not to pack."""

    nodes: NodeMethod | None = None
    sockets: BindMethod | None = None
    cores: BindMethod | None = None
    plane_size: int | None = None
    pack: bool | None = None


DEFAULT_DISTRIBUTION = Distribution()
