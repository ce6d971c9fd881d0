"""What a submission depends on besides its options, all of it explicit: who asks, from where, with what environment."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field

from bireme.core.model.jobs import Owner
from bireme.slurm.options.catalogue.table import Command
from bireme.slurm.options.values import Moment
from bireme.slurm.times import UtcOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitContext:
    """The caller's side of a submission. `cli/` fills it in; nothing here is read from the machine."""

    owner: Owner
    cwd: str = "/"
    umask: int = 0o022
    process_nice: int = 0
    submit_host: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    now: float
    utc_offset: UtcOffset
    submit_line: str = ""
    """The whole command line, as `sacct` shows it."""
    node_file: str = ""
    """What --nodefile (or a --nodelist that is a path) holds."""
    host_file: str | None = None
    """What the file holds that SLURM_HOSTFILE names; None: the variable is not set."""
    host_file_fault: str = ""
    """Why that file could not be read."""
    export_file: bytes | None = None
    """What --export-file holds."""
    multi_prog: str = ""
    """What srun --multi-prog's file holds."""

    def moment(self, command: Command) -> Moment:
        """What reading the values of this command's options may depend on."""
        size = self.environment.get("SLURM_DIST_PLANESIZE", "")
        plane_size = int(size) if size.isascii() and size.isdecimal() and len(size) < 10 else None
        return Moment(command, self.now, self.utc_offset, plane_size)

    def absolute(self, path: str) -> str:
        """`path` seen from the caller's working directory."""
        return posixpath.normpath(posixpath.join(self.cwd, path)) if path else self.cwd
