"""What is asked of Slurm, and how it answers: jobs, nodes, the cluster, ended jobs. One call for all of a kind.

The commands are one source; `rest` is the other. Both give the same JSON objects, so that there is one reader for them.
Invariant: an answer that cannot be read is Silent, with the reason; nothing is guessed from half of one.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from typing import Any, Protocol

from bireme.engines.slurm.cluster import Described
from bireme.engines.slurm.commands import WHAT_TO_CHECK, Silent, SlurmCommands, is_silence, why_silent
from bireme.engines.slurm.values import Json, look, number, text

OLDEST, NEWEST = (22, 5), (26, 5)
"""Versions this was tried with. Others are used all the same, and it is said that they were not."""
_NOTHING_FOUND = "nothing found"
"""What 22.05 says of an empty database."""
_VERSION = re.compile(r"(\d+)\.(\d+)")
_EXIT_CODES_IN_JSON = (23, 2)
_NODES_BY_SCONTROL = (23, 2)
"""From then on `sinfo --json` has groups of nodes, and scontrol the nodes."""


class Source(Protocol):
    """Where the engine reads from. Every method is one call to slurmctld or slurmdbd, and raises Silent."""

    async def version(self) -> str: ...

    async def jobs(self, job_ids: Sequence[int] = ()) -> list[Json]:
        """All jobs that slurmctld remembers, or these."""

    async def nodes(self) -> list[Json]: ...

    async def steps(self) -> str:
        """The steps that run, as scontrol tells them."""

    async def described(self, nodes: Sequence[Json]) -> Described:
        """Configuration, partitions and topology (three calls)."""

    async def ended(self, since: float, job_ids: Sequence[int] = ()) -> list[Json] | None:
        """Jobs of the accounting database that ended since then, or these; None where there is no database."""


class CommandSource:
    def __init__(self, commands: SlurmCommands) -> None:
        self._commands = commands
        self._version: tuple[int, int] = (0, 0)
        self._has_database = True

    async def version(self) -> str:
        done = await self._commands.read("sinfo", "--version")
        said = done.out.decode(errors="replace").strip()
        self._version = version_of(said)
        return said.removeprefix("slurm-wlm ").removeprefix("slurm ")

    async def jobs(self, job_ids: Sequence[int] = ()) -> list[Json]:
        chosen = [f"--jobs={','.join(map(str, job_ids))}"] if job_ids else ["--states=all"]
        return await self._listed("jobs", "squeue", "--json", "--all", *chosen)

    async def nodes(self) -> list[Json]:
        if self._version >= _NODES_BY_SCONTROL:
            return await self._listed("nodes", "scontrol", "--json", "show", "nodes")
        return await self._listed("nodes", "sinfo", "--json", "--all")

    async def steps(self) -> str:
        return _text((await self._commands.read("scontrol", "--oneliner", "show", "step")).out)

    async def described(self, nodes: Sequence[Json]) -> Described:
        config = await self._commands.read("scontrol", "show", "config")
        partitions = await self._commands.read("scontrol", "--oneliner", "--all", "show", "partition")
        topology = await self._commands.run("scontrol", "show", "topology")
        switches = "" if topology.returncode else topology.out.decode(errors="replace")
        return Described(_text(config.out), _text(partitions.out), switches, nodes)

    async def ended(self, since: float, job_ids: Sequence[int] = ()) -> list[Json] | None:
        if not self._has_database:
            return None
        chosen = [f"--jobs={','.join(map(str, job_ids))}"] if job_ids else []
        start = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since))
        argv = ("sacct", "--json", "--allusers", "--duplicates", f"--starttime={start}", *chosen)
        done = await self._commands.run(*argv)
        if "accounting storage is disabled" in done.err.lower():
            self._has_database = False
            return None
        if done.returncode:
            raise Silent(f"slurmdbd: {why_silent('sacct', done.err)}")
        jobs = parsed("jobs", "sacct", done.out)
        if jobs and self._version < _EXIT_CODES_IN_JSON:
            await self._add_exit_codes(jobs, argv)
        return jobs

    async def _add_exit_codes(self, jobs: Sequence[Json], argv: Sequence[str]) -> None:
        """In the JSON of 22.05 every job of the database exits with 0; its text is right."""
        words = [word for word in argv if word != "--json"]
        how = ("--noheader", "--parsable2", "--format=JobIDRaw,ExitCode,DerivedExitCode")
        done = await self._commands.read(*words, *how)
        codes = {line.partition("|")[0]: line.split("|")[1:] for line in _text(done.out).splitlines()}
        for job in jobs:
            job_id = str(job.get("job_id"))
            exit_code, derived = (*codes.get(job_id, ()), "", "")[:2]
            _set_status(job, "exit_code", exit_code)
            _set_status(job, "derived_exit_code", derived)
            for step in job.get("steps") or ():
                _set_status(step, "exit_code", next(iter(codes.get(f"{job_id}.{step['step']['id']}", ())), ""))

    async def _listed(self, what: str, *argv: str) -> list[Json]:
        done = await self._commands.read(*argv)
        return parsed(what, argv[0], done.out, done.err)


def _set_status(record: Json, field: str, written: str) -> None:
    """`2:0`."""
    code, colon, signal = written.partition(":")
    if colon and isinstance(record, dict):
        record[field] = {"return_code": int(code), "signal": {"signal_id": int(signal)}}


def _text(out: bytes) -> str:
    return out.decode(errors="replace")


def version_of(said: str) -> tuple[int, int]:
    found = _VERSION.search(said)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def version_warning(version: str) -> str:
    """What to tell about a version that this was not tried with; empty when it was."""
    number_ = version_of(version)
    if OLDEST <= number_ <= NEWEST:
        return ""
    oldest, newest = (f"{major}.{minor:02d}" for major, minor in (OLDEST, NEWEST))
    what = "has no --json output that can be relied on" if number_ < OLDEST else "may write JSON that is not understood"
    return f"found Slurm {version or 'of an unknown version'}; {oldest} to {newest} are supported: it {what}"


def parsed(what: str, command: str, out: bytes, err: str = "") -> list[Json]:
    """The list under `what`. 22.05 says in `errors` that slurmctld did not answer, and ends with 0."""
    try:
        document: Any = json.loads(out)
    except ValueError as error:
        start = out[:60].decode(errors="replace").strip().replace("\n", " ")
        raise Silent(f"{command} --json cannot be read ({error}); it begins with: {start or 'nothing'}") from error
    if not isinstance(document, dict):
        raise Silent(f"{command} --json is not an object")
    problems = [each for each in document.get("errors") or () if isinstance(each, dict)]
    listed = document.get(what)
    if problems and not listed:
        if any(_NOTHING_FOUND in json.dumps(each).lower() for each in problems):
            return []
        raise Silent(_told(command, problems, err))
    if not isinstance(listed, list):
        release = text(look(document, "release"))
        raise Silent(f"{command} --json of Slurm {release or '?'} has no list of {what}")
    return [each for each in listed if isinstance(each, dict)]


def _told(command: str, problems: Sequence[Json], err: str) -> str:
    if is_silence(err):
        return why_silent(command, err)
    first = problems[0]
    said = text(first.get("error")) or text(first.get("description")) or str(number(first.get("error_number")))
    about = text(first.get("description"))
    return f"slurmctld does not answer ({command}: {about or said}): {WHAT_TO_CHECK}"
