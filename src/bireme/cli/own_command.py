"""srun and salloc on a Slurm cluster: this process becomes Slurm's own command of the same name.

Slurm places there, and its own commands speak with its nodes. Called by `submission` when the daemon says so.
Invariant: what runs inside finds Slurm's commands and not ours: the cluster's jobs are Slurm's.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import NoReturn

from bireme.cli.voice import CommandFailure
from bireme.client.transport import Transport
from bireme.daemon.paths import Paths

OWN_COMMAND = "ESLURM_OWN_COMMAND"


def become_slurms_own(transport: Transport, name: str) -> NoReturn:
    """Runs it with the same arguments, for the cluster that the daemon is attached to."""
    settings = transport.get("/v1/config")["bireme"]
    ours = Paths().bin
    path = os.pathsep.join(folder for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if folder != ours)
    found = shutil.which(name, path=settings.get("slurm.commands") or path)
    if found is None:
        raise CommandFailure(f"Slurm's own {name} is not on PATH", hint="install Slurm's client commands")
    variables = {key: value for key, value in os.environ.items() if not key.startswith("BIREME_")} | {"PATH": path}
    if settings.get("cluster.conf"):
        variables["SLURM_CONF"] = settings["cluster.conf"]
    sys.stdout.flush()
    os.execve(found, [name, *sys.argv[1:]], variables)
