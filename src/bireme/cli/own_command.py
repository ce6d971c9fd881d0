"""Commands that a Slurm cluster answers itself: this process becomes Slurm's own command of the same name.

Slurm places there, and its own commands speak with its nodes (srun, salloc, sattach) and its books (sshare, sacctmgr,
sprio, reservations). Called where the daemon says so (`OWN_COMMAND`).
Invariant: what runs inside finds Slurm's commands and not ours: the cluster's jobs are Slurm's.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any, NoReturn

from bireme.client.transport import ApiError, Response, Transport
from bireme.commands.surroundings import OWN_COMMAND
from bireme.commands.voice import CommandFailure
from bireme.daemon.paths import Paths


class ReportingTransport(Transport):
    """The transport of a command that may be Slurm's to answer: the process becomes that command when the daemon says
    so."""

    def __init__(self, name: str, *, patience_s: float = 0.0) -> None:
        super().__init__(patience_s=patience_s)
        self._name = name

    def request(self, *words: Any, **more: Any) -> Response:
        try:
            return super().request(*words, **more)
        except ApiError as error:
            if error.code == OWN_COMMAND:
                become_slurms_own(self, self._name)
            raise


def become_slurms_own(transport: Transport, name: str) -> NoReturn:
    """Runs it with the same arguments, for the cluster that the daemon is attached to."""
    settings = transport.get("/v1/config")["bireme"]
    ours = Paths().bin
    path = os.pathsep.join(folder for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if folder != ours)
    found = shutil.which(name, path=settings.get("slurm.commands") or path)
    if found is None:
        raise CommandFailure(f"Slurm's own {name} is not on PATH", hint="install Slurm's client commands")
    variables = {key: value for key, value in os.environ.items() if not key.startswith("BIREME_")} | {"PATH": path}
    conf = settings.get("slurm.conf") or settings.get("cluster.conf")
    if conf:
        variables["SLURM_CONF"] = conf
    sys.stdout.flush()
    os.execve(found, [name, *_words(name)], variables)


def _words(name: str) -> list[str]:
    """As they were given, to the command or to `bireme COMMAND`."""
    words = sys.argv[1:]
    return words[1:] if words[:1] == [name] else words
