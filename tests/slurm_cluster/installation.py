"""Which Slurm there is: the system's, or the one under `BIREME_SLURM_ROOT` (a prefix, or a system to chroot into).

Knows programs, versions and how a command line becomes one that runs in the right place. Starts nothing by itself.
Invariant: never one of Bireme's own commands of the same name, whatever is first on the PATH.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin"
BASIC = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "sinfo", "scontrol")
ACCOUNTING = ("slurmdbd", "mariadbd", "sacct", "sacctmgr")
DEBIAN_PACKAGES = (
    "slurm-wlm", "slurmdbd", "slurmrestd", "slurm-wlm-mysql-plugin", "slurm-wlm-jwt-plugin", "mariadb-server-core",
    "munge",
)  # fmt: skip
ROOT_VARIABLE = "BIREME_SLURM_ROOT"


@dataclass(frozen=True)
class Installation:
    """Where Slurm's programs are. `chroot`: a whole system of its own (its libraries would not work out here)."""

    path: str = SYSTEM_PATH
    chroot: str = ""

    def program(self, name: str) -> str:
        """Where a program is, as seen by who runs it (in the chroot: from inside)."""
        for folder in self.path.split(":"):
            candidate = Path(self.chroot or "/", folder.lstrip("/"), name)
            if os.access(candidate, os.X_OK) or candidate.is_symlink():
                return f"{folder}/{name}"
        raise FileNotFoundError(f"{name} is not installed{f' under {self.chroot}' if self.chroot else ''}")

    def has(self, name: str) -> bool:
        try:
            self.program(name)
        except FileNotFoundError:
            return False
        return True

    def inside(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` for a child of the guard (which has the mounts of a chroot already)."""
        words = [self.program(argv[0]), *argv[1:]]
        return ["chroot", self.chroot, *words] if self.chroot else words

    def outside(self, argv: Sequence[str], guard_pid: int, cwd: str, user: str) -> list[str]:
        """The command line that runs `argv` for the test itself: in a chroot it joins the guard's mounts first."""
        words = [argv[0] if "/" in argv[0] else self.program(argv[0]), *argv[1:]]
        if self.chroot:
            enter = ["nsenter", f"--mount=/proc/{guard_pid}/ns/mnt", "chroot"]
            return [*enter, *([f"--userspec={user}"] if user else []), self.chroot, "env", "-C", cwd, *words]
        return words

    @cached_property
    def version_text(self) -> str:
        argv = self.inside(["slurmctld", "-V"])
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()

    @property
    def version(self) -> tuple[int, int]:
        found = re.search(r"(\d+)\.(\d+)", self.version_text)
        assert found, f"no version in {self.version_text!r}"
        return int(found[1]), int(found[2])

    def system_tables(self) -> str:
        """The script that makes MariaDB's own tables; its name depends on the version."""
        found = Path(self.chroot or "/", "usr/share").glob("m*/*_system_tables.sql")
        return next(found).read_text()

    def missing(self, *, accounting: bool = True) -> str:
        """Why it cannot be started here, in one line; empty when it can."""
        if os.geteuid() != 0:
            return "a real Slurm needs root: its daemons start jobs as their users"
        absent = [name for name in (*BASIC, *(ACCOUNTING if accounting else ())) if not self.has(name)]
        if not absent:
            return ""
        where = f" under {self.chroot}" if self.chroot else f" (Debian: apt-get install {' '.join(DEBIAN_PACKAGES)})"
        return f"not installed: {', '.join(absent)}{where}"


def installed() -> Installation:
    """The one that `BIREME_SLURM_ROOT` names, or the system's."""
    root = os.environ.get(ROOT_VARIABLE, "").rstrip("/")
    if not root:
        return Installation()
    if (Path(root) / "bin" / "bash").exists():
        return Installation(chroot=root)
    return Installation(path=f"{root}/sbin:{root}/bin:{SYSTEM_PATH}")


def missing_packages() -> list[str]:
    """Debian packages that `make test` should install; none when `BIREME_SLURM_ROOT` names a Slurm."""
    if os.environ.get(ROOT_VARIABLE):
        return []
    wanted = (*BASIC, *ACCOUNTING, "slurmrestd")
    return [] if all(shutil.which(name, path=SYSTEM_PATH) for name in wanted) else list(DEBIAN_PACKAGES)
