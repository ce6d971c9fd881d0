"""A rehearsal as a gatherer looks at it: owners and GPUs of a scene, in place of the machine's own."""

from __future__ import annotations

import logging
from pathlib import Path

from bireme.gather.gpus.telling import ToldGpus, told
from bireme.gather.gpus.watching import Gpus
from bireme.gather.owners import Owners
from bireme.gather.rehearsal.cards import Cast, PlayedCards, PlayedOwners
from bireme.gather.rehearsal.lines import PlayedLog
from bireme.gather.rehearsal.scene import Scene

log = logging.getLogger("bireme.gather")


def rehearsed(folder: Path, agents: Path, machine: str) -> tuple[Owners, ToldGpus]:
    """Watched from now on. Raises OSError where the scene was not set up."""
    scene, cast = Scene(folder), Cast()
    log.info("GPUs and the kernel's lines are those of a rehearsal: %s", folder)
    gpus = Gpus(
        PlayedCards(scene, cast), lambda device: device.node, kernel_log=PlayedLog(scene.kernel), machine=machine
    )
    return PlayedOwners(agents, cast), told(gpus)
