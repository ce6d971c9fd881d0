"""`--container-save`: writes what a box holds to a file, when the script or step in it is over, as its user.

Called by `jobs` and `steps`, whose end waits for it. The files are reached by the descriptor that the box was built
with (`OpenBox.files_fd`): what is mounted in the box is not among them. How a file is written is
`bireme.images.saving`.
Invariant: `done` is called once, later than `begin` returned, with what went wrong, or nothing.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from bireme.agent.boxing.asking import InBox
from bireme.agent.keeping.launching import Launching
from bireme.agent.starting.spawn import Birth, SpawnError
from bireme.agent.system.identity import Identity
from bireme.agent.system.loop import Loop
from bireme.agent.system.reaper import ReapedChild
from bireme.images.saving import Saving

_FILES_FD = 20
_MOST_SAID = 4096


@dataclass(slots=True, eq=False)
class BoxSaving:
    loop: Loop
    box: InBox
    identity: Identity | None
    done: Callable[[str], None]
    _pid: int = 0
    _said_fd: int = -1
    _over: bool = False

    def begin(self) -> None:
        order, files_fd = self.box.order, self.box.box.files_fd
        request = msgspec.json.encode(Saving(root=".", target=order.save, image=self.box.box.image))
        question = os.memfd_create("saving", os.MFD_CLOEXEC)
        os.write(question, request)
        os.lseek(question, 0, os.SEEK_SET)
        self._said_fd = os.memfd_create("said", os.MFD_CLOEXEC)
        null_fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        birth = Birth(
            argv=[sys.executable, "-I", "-m", "bireme.images.saving"],
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"},
            stdin=question,
            stdout=self._said_fd,
            stderr=null_fd,
            # What is started further does not inherit the descriptor, but it does inherit the folder.
            cwd=f"/proc/self/fd/{_FILES_FD}",
            extra_fds={_FILES_FD: files_fd},
            identity=self.identity,
            umask=0o022,
        )
        launching = Launching(self.loop, birth, process=self._has_process, started=self._started, exited=self._exited)
        try:
            launching.begin()
        finally:
            os.close(question)
            os.close(null_fd)

    def cancel(self) -> None:
        """It ends, and says so as it does when it fails."""
        if self._pid:
            with suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)

    def _has_process(self, pid: int) -> None:
        self._pid = pid

    def _started(self, problem: SpawnError | None) -> None:
        if problem is not None:
            self._end(str(problem))

    def _exited(self, reaped: ReapedChild) -> None:
        said = os.pread(self._said_fd, _MOST_SAID, 0).decode(errors="replace").strip()
        self._end("" if reaped.status.ok else said or f"{self.box.order.save} was not written")

    def _end(self, problem: str) -> None:
        self._pid = 0
        if not self._over:
            self._over = True
            os.close(self._said_fd)
            self.done(problem)
