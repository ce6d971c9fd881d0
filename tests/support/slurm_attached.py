"""Bireme attached to a real Slurm: the Slurm of `tests/slurm_cluster`, and a Bireme whose engine it is.

Used by tests/integration and tests/conformance. Invariant: leaving `attached()` ends both, by process id.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.slurm_cluster import Layout, SlurmCluster, installed, missing, running
from tests.support.cluster import Cluster

_COMMANDS = (
    *("sbatch", "squeue", "sinfo", "scontrol", "sacct", "scancel", "sstat", "srun", "salloc"),
    *("sattach", "sshare", "sacctmgr", "sprio"),
)


class Attached(Cluster):
    """A Bireme whose cluster is a Slurm. Commands are Bireme's; `slurm` has Slurm's own."""

    def __init__(self, slurm: SlurmCluster, *, for_everyone: bool = False, poll_s: int = 1) -> None:
        super().__init__(for_everyone=for_everyone)
        self.slurm = slurm
        self.conf_file = slurm.folder / "slurm.conf"
        if slurm.slurm.chroot:
            self.work = slurm.work  # what jobs may write to must be seen in there too
        self.work.chmod(0o777)
        self.home.mkdir()
        self.commands = wrappers(self.folder / "commands", slurm) if slurm.slurm.chroot else None
        self.settings(f"poll_s = {poll_s}")

    def settings(self, *lines: str) -> None:
        """Of the section [slurm]; for the next `up`."""
        where = [f'commands = "{self.commands}"'] if self.commands and "commands" not in "".join(lines) else []
        (self.home / "bireme.toml").write_text("\n".join(["[slurm]", *where, *lines, ""]))

    @property
    def env(self) -> dict[str, str]:
        """`SLURM_CONF` is not set: which Slurm it is, the daemon knows."""
        variables = super().env
        return {**variables, "PATH": os.pathsep.join([variables["PATH"], self.slurm.slurm.path])}

    def up(self) -> Attached:
        self.bireme("up", "--quiet", "--engine", "slurm", "--conf", str(self.conf_file))
        return self


def wrappers(folder: Path, slurm: SlurmCluster) -> Path:
    """Commands that enter the chroot in which a newer Slurm lives. They need root."""
    folder.mkdir()
    enter = f"exec nsenter --mount=/proc/{slurm.guard.pid}/ns/mnt chroot {slurm.slurm.chroot} env -C / "
    for name in _COMMANDS:
        (folder / name).write_text(f'#!/bin/sh\n{enter} {slurm.slurm.program(name)} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def skip_without_slurm() -> None:
    why = missing()
    if why:
        pytest.skip(why)


def skip_in_chroot(why: str) -> None:
    if installed().chroot:
        pytest.skip(f"Slurm's commands run in a chroot here: {why}")


@contextmanager
def attached(layout: Layout | None = None, *, for_everyone: bool = False) -> Iterator[Attached]:
    skip_without_slurm()
    with running(layout or Layout()) as slurm, Attached(slurm, for_everyone=for_everyone).running() as bireme:
        yield bireme
