"""The cgroups that agents leave behind which were killed, removed when their cluster is taken down.

An agent removes the groups of its predecessor when it starts and its own when it ends; `bireme down --end-jobs` may
come after one was killed and before there is another. Called by it for each node, when no agent is left.
Invariant: only groups named after this cluster and node are touched; what still runs in them is ended with them.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

from bireme.agent.confining.confined import confinement_name
from bireme.agent.confining.confinement import CONTROLLERS
from bireme.agent.confining.hierarchy import find_v1, own_group_v2
from bireme.agent.confining.tracking import TrackingGroup, tracking_name

_PATIENCE_S = 5.0
_PAUSE_S = 0.02


def remove_groups(home: str, node: str) -> bool:
    """Removes what is left of a node's groups; False: something in them does not end."""
    deadline = time.monotonic() + _PATIENCE_S
    left = [group for group in left_groups(home, node) if not _removed(group)]
    while left and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
        left = [group for group in left if not _removed(group)]
    return not left


def _removed(group: TrackingGroup) -> bool:
    """An empty one goes at once; from one that is not, its processes."""
    if group.remove():
        return True
    if group.pids():
        for folder in _folders(group.path):
            TrackingGroup(folder, group.version).kill()
    return group.remove()


def _folders(path: Path) -> list[Path]:
    return [path, *(folder for folder in path.glob("**/*") if folder.is_dir())]


def left_groups(home: str, node: str) -> list[TrackingGroup]:
    """The groups of a node's agents that are there, whoever made them."""
    places: set[tuple[Path, Literal[1, 2]]] = set()
    if (own := own_group_v2()) is not None:  # an agent that confines takes the nearest one upwards without processes
        upwards = [folder for folder in (own.home, *own.home.parents) if folder.is_relative_to(own.mount)]
        places |= {(folder, 2) for folder in upwards}
    trees = [find_v1(controller) for controller in ("freezer", *CONTROLLERS.values())]
    places |= {(tree.home, 1) for tree in trees if tree is not None}
    names = (tracking_name(home, node), confinement_name(home, node))
    groups = (TrackingGroup(place / name, version) for place, version in places for name in names)
    return [group for group in groups if group.path.is_dir()]
