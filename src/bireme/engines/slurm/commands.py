"""Slurm's own commands, run as subprocesses: with the right identity, a time limit, and their refusals understood.

Arguments are a list, never a shell's text. Who runs a command is the daemon's user, or, where the daemon is root,
whoever asked. Not here: which command is run (`queries`, `submission`, `orders`).
Invariant: a command that does not end in time is ended, by its process id, and counts as Slurm not answering.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from bireme.core.model.jobs import Owner
from bireme.core.model.refusals import Refusal, Why

log = logging.getLogger("bireme.engines.slurm")

TIMEOUT_S = 60.0
WHAT_TO_CHECK = "is it running, and is this the right slurm.conf?"
_SILENT = re.compile(
    r"Unable to contact slurm controller|Unable to connect|Connection (?:refused|reset|timed out)|timed out"
    r"|Communication (?:connection|failure|error)|Zero Bytes were transmitted|primary slurm controller"
    r"|No route to host|slurm_init_msg|Message (?:send|receive)|connect failure|DNS SRV lookup failed",
    re.IGNORECASE,
)
_CREDENTIALS = re.compile(
    r"[Mm]unge|Protocol authentication error|[Ii]nvalid authentication|[Tt]oken|Invalid user id|auth_g_create"
)
_PREFIX = re.compile(r"^(?:\w+: )?(?:(?:error|fatal|slurm_\w+ error): )?")
_RATE_WINDOW_S = 60.0


class Silent(OSError):  # noqa: N818  (named for what happened)
    """Slurm did not answer, or not with anything that can be read. The text says what was tried, and what to check."""


@dataclass(frozen=True, slots=True)
class Done:
    returncode: int
    out: bytes
    err: str
    took_s: float


class CallRate:
    """How many calls were made in the last minute: the load that Bireme puts on slurmctld and slurmdbd."""

    def __init__(self) -> None:
        self._at: deque[float] = deque()
        self.total = 0

    def note(self) -> None:
        self.total += 1
        self._at.append(time.monotonic())
        self.per_minute()

    def per_minute(self) -> int:
        while self._at and self._at[0] < time.monotonic() - _RATE_WINDOW_S:
            self._at.popleft()
        return len(self._at)


class SlurmCommands:
    """The commands of one cluster."""

    def __init__(self, conf: str = "", folder: str = "", *, hidden: str = "", timeout_s: float = TIMEOUT_S) -> None:
        """`conf`: the cluster's slurm.conf; empty: Slurm's own default. `folder`: where its commands are.

        `hidden`: a folder of PATH that is not looked into: Bireme's own commands have the same names.
        """
        self._conf, self._folder, self._hidden = conf, folder, hidden
        self.timeout_s = timeout_s
        self.rate = CallRate()

    def path_of(self, name: str) -> str:
        """Raises Silent when there is no such command."""
        folders = self._folder or self.outside(os.environ.get("PATH", os.defpath))
        found = shutil.which(name, path=folders)
        if found is None:
            where = f"in {self._folder}" if self._folder else "on PATH"
            raise Silent(f"Slurm's {name} is not {where}: install Slurm's client commands, or set slurm.commands")
        return found

    def outside(self, path: str) -> str:
        """A PATH without Bireme's own commands: inside a Slurm job, srun is Slurm's."""
        kept = [folder for folder in path.split(os.pathsep) if folder and folder != self._hidden]
        return os.pathsep.join(kept)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        variables = {name: value for name, value in base.items() if name != "BIREME_HOME"}
        variables["PATH"] = self.outside(base.get("PATH", os.defpath))
        if self._conf:
            variables["SLURM_CONF"] = self._conf
        return variables

    async def run(
        self,
        *argv: str,
        identity: Owner | None = None,
        input: bytes = b"",
        environ: Mapping[str, str] | None = None,
        cwd: str = "/",
        umask: int = -1,
    ) -> Done:
        """Runs it to its end. Raises Silent when it cannot be run, or does not end in time."""
        own = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TZ") if name in os.environ}
        began = time.monotonic()
        self.rate.note()
        stdin = _readable(input)
        try:
            process = await asyncio.create_subprocess_exec(
                self.path_of(argv[0]),
                *argv[1:],
                stdin=stdin,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self.environment(own if environ is None else environ),
                cwd=cwd,
                start_new_session=True,
                umask=umask,
                **_as_user(identity),
            )
        except OSError as error:
            raise Silent(f"{argv[0]} cannot be run: {error}") from error
        finally:
            os.close(stdin)
        try:
            async with asyncio.timeout(self.timeout_s):
                out, err = await process.communicate()
        except TimeoutError:
            raise Silent(f"{argv[0]} did not answer within {self.timeout_s:g} s; is slurmctld overloaded?") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        took = time.monotonic() - began
        return Done(process.returncode or 0, out, err.decode(errors="replace").strip(), took)

    async def read(self, *argv: str) -> Done:
        """A query: raises Silent unless it succeeded."""
        done = await self.run(*argv)
        if done.returncode:
            raise Silent(why_silent(argv[0], done.err or done.out.decode(errors="replace").strip()))
        return done


def _readable(data: bytes) -> int:
    """A file in memory with this content: unlike a pipe of ours, another user's process may open it by its name."""
    descriptor = os.memfd_create("stdin")
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _as_user(identity: Owner | None) -> dict[str, Any]:
    """As root: the user's own identity. Else there is only one that we have, and `check_identity` has looked."""
    if identity is None or os.geteuid() != 0 or identity.uid == 0:
        return {}
    return {"user": identity.uid, "group": identity.gid, "extra_groups": list(identity.groups)}


def check_identity(identity: Owner) -> None:
    """Raises Refusal when a command would run as somebody else than who asked for it."""
    if os.geteuid() not in (0, identity.uid):
        raise Refusal(
            Why.ACCESS_DENIED,
            "this daemon is not root's: on the Slurm cluster it acts as its own user only; run a daemon of your own",
        )


class UnsureRefusal(Refusal):
    """Slurm does not answer: whether what was asked is done will be seen when it does. The same may be asked again."""


def why_silent(command: str, said: str) -> str:
    """One message that says what to check."""
    line = last_line(said) or "no output"
    if _SILENT.search(said):
        return f"slurmctld does not answer ({line}): {WHAT_TO_CHECK}"
    if _CREDENTIALS.search(said):
        return f"Slurm does not accept who we are ({line}): check munge, or the token"
    return f"{command}: {line}"


def is_silence(said: str) -> bool:
    return bool(_SILENT.search(said) or _CREDENTIALS.search(said))


def last_line(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    return _PREFIX.sub("", lines[-1]) if lines else ""


def refusal(done: Done, words: Sequence[str] = ()) -> Refusal:
    """What a command said when it failed, as the refusal that its user reads: from the last of `words` on."""
    said = last_line(done.err) or f"exit status {done.returncode}"
    for word in words:
        said = said.rpartition(word)[2]
    known = next((why for why in Why if why.value.text == said), Why.ERROR)
    earlier = [line for line in done.err.splitlines()[:-1] if line.strip()]
    return Refusal(known, said=said, remark=_PREFIX.sub("", earlier[-1]) if earlier else "")
