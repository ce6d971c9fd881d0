"""The submitter of a job: who it is, where it stands, what its options name.

The only place where sbatch, srun and salloc ask for what surrounds them (user, folder, umask, clock, files named by
options); `slurm/options` stays pure. Also how a specification travels: `plain`, the JSON the API reads.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any

from bireme.commands.surroundings import around
from bireme.commands.voice import CommandFailure
from bireme.core.model.jobs import Owner
from bireme.slurm.options.arbitrary import HOST_FILE
from bireme.slurm.options.catalogue.all_options import TABLES
from bireme.slurm.options.catalogue.table import Command
from bireme.slurm.options.context import SubmitContext
from bireme.slurm.options.getopt import read_command_line
from bireme.slurm.options.layers import peek

_NO_FOLDER = 255


def _folder(command: Command) -> str:
    """Where the job is to run. As in Slurm, only salloc goes on where the folder was removed: its program runs here."""
    if around().folder:
        return around().folder
    told = f"getcwd failed: {os.strerror(errno.ENOENT)}"
    if command is not Command.SALLOC:
        raise CommandFailure(told, code=_NO_FOLDER, hint="the folder it is started in was removed: cd to another one")
    around().remark(f"salloc: error: {told}", "\n")
    return "/"


def submit_context(
    command: Command, argv: Sequence[str], environment: Mapping[str, str] | None = None
) -> SubmitContext:
    """The caller's side of a submission, with the files read that its options name."""
    written = peek(command, argv)
    host_file, host_file_fault = _host_file()
    return SubmitContext(
        owner=_owner(),
        cwd=_folder(command),
        umask=around().umask,
        process_nice=around().nice,
        submit_host=around().host,
        environment=dict(around().environment),
        now=time.time(),
        utc_offset=local_utc_offset,
        submit_line=" ".join([command, *argv]),
        node_file=_node_file(written),
        host_file=host_file,
        host_file_fault=host_file_fault,
        export_file=_export_file(written.get("export-file")),
        multi_prog=_multi_prog(command, argv, written),
    )


def _owner() -> Owner:
    """Only for what is shown before submission: the daemon takes the owner from the connection."""
    return Owner(uid=around().uid, gid=around().gid, user=around().user)


def local_utc_offset(at: float) -> float:
    return float(time.localtime(at).tm_gmtoff)


def _text(data: bytes) -> str:
    """As a file of text is read: whatever ends its lines."""
    return data.decode("utf-8", "surrogateescape").replace("\r\n", "\n").replace("\r", "\n")


def _node_file(written: Mapping[str, str | None]) -> str:
    """What --nodefile holds, or a --nodelist that is a path (it has a slash in it)."""
    named = written.get("nodefile")
    nodelist = written.get("nodelist")
    if not named and nodelist and "/" in nodelist:
        named = nodelist
    if not named:
        return ""
    try:
        return _text(around().read_file(named))
    except OSError as error:
        raise CommandFailure(f"Unable to open hostfile {named}: {error.strerror}") from error


def _host_file() -> tuple[str | None, str]:
    """(what the file holds that SLURM_HOSTFILE names, why it could not be read). The options say whether it counts."""
    named = around().environment.get(HOST_FILE)
    if not named:
        return named, ""
    try:
        return _text(around().read_file(named)), ""
    except OSError as error:
        return "", error.strerror or str(error)


def _export_file(named: str | None) -> bytes | None:
    if named is None:
        return None
    try:
        if named.isdigit():  # a descriptor of the process that was started
            around().only_near()
            with os.fdopen(os.dup(int(named)), "rb") as file:
                return file.read()
        return around().read_file(named)
    except OSError as error:
        raise CommandFailure(f"Could not open user environment file {named}") from error


def _multi_prog(command: Command, argv: Sequence[str], written: Mapping[str, str | None]) -> str:
    if command is not Command.SRUN or "multi-prog" not in written:
        return ""
    # Late: only srun --multi-prog needs the words after the options here.

    words = read_command_line(TABLES[command], argv)[0].words
    if not words:
        return ""
    try:
        return _text(around().read_file(words[0]))
    except OSError as error:
        raise CommandFailure(f"Could not open multi_prog config file {words[0]}") from error


def plain(value: Any) -> Any:
    """A specification as JSON values; fields that have their default are left out."""
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value) if not _is_default(one, value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def _is_default(field: Any, holder: Any) -> bool:
    if field.default is not MISSING:
        return bool(getattr(holder, field.name) == field.default)
    return field.default_factory is not MISSING and bool(getattr(holder, field.name) == field.default_factory())


def plain_spec(spec: Any) -> dict[str, Any]:
    """A JobSpec as the API takes it: without its owner, whom the daemon knows from the connection."""
    content: dict[str, Any] = plain(spec)
    content.pop("owner", None)
    return content
