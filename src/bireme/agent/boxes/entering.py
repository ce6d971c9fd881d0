"""A task's way into a box, in the child that becomes it: the last thing that happens before its program is looked for.

Called by `starting/spawn` when everything of the machine's is open (streams, cgroups, the user's rights). Not here:
what the box is (`building`). Invariant: nothing of the box's descriptors stays open in the program.
"""

from __future__ import annotations

import os

from bireme.agent.boxes.blueprint import Entrance
from bireme.agent.boxes.building import KINDS
from bireme.agent.boxes.pretending import pretend_root
from bireme.agent.system.mounts import setns


def enter(entrance: Entrance) -> None:
    """Raises OSError."""
    for fd, kind in zip(entrance.fds, KINDS, strict=True):
        setns(fd, kind)
        os.close(fd)
    if entrance.remap_root:
        pretend_root()
