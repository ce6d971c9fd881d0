"""Questions that take long to think about, answered beside the loop by a forked child.

To plan a hundred thousand jobs takes a second, and nobody else may wait for it. A fork has the state as it was at that
moment, at the price of its page tables (12 ms at 500 MiB), and thinks on another core, as the nice process that it is.
What it found comes back through a pipe. Asked by `bireme why`, `sbatch --test-only` and `bireme snapshot`.

The daemon has threads, and of these a fork has only the one that made it: what is asked here may compute, and must not
open, log, import or wait for anything. One child at a time; who asks meanwhile is answered by the next one, one
question of each user in each.

Invariants: a child holds no descriptor of the daemon's but its pipe (locks and sockets end with the daemon, not with
it), ends with the daemon, and ends by itself after `MOST_S` of computing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import gc
import os
import pickle
import resource
import signal
import struct
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar, cast

from bireme.agent.system.descriptors import close_all_but
from bireme.agent.system.forking import fork_deaf

MOST_S = 60
"""What one child may compute, for all that it was asked."""
MOST_EACH = 8
"""Questions of one user that may wait."""
_NICE = 10
_FIRST_TO_GO = b"1000"
"""Where memory is short, the kernel ends such a child before anything else."""
_HEAD = struct.Struct("<?Q")
"""Whether it was answered, and how many bytes follow: the answer, or what went wrong."""
_PIPE_BYTES, _READ_BYTES = 1 << 20, 1 << 18
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl  # found before any fork: a child must not wait for the loader

Answer = TypeVar("Answer")


class TooManyQuestionsError(Exception):
    """This user has as many that wait as one may have."""


class UnansweredError(Exception):
    """No child could be made, or it was ended before it had answered: to ask again may help."""


class ThoughtError(Exception):
    """What was asked raised something; the text is the child's traceback."""


@dataclass(frozen=True, slots=True)
class _Question:
    think: Callable[[], Any]
    is_gone: Callable[[], bool]
    """Whether nobody waits for the answer any more."""
    answer: asyncio.Future[Any]

    def give_up(self, why: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(UnansweredError(why))


class Asides:
    """Questions, by user, and the child that thinks about some of them."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, deque[_Question]] = OrderedDict()
        self._child: _Child | None = None

    async def ask(self, uid: int, think: Callable[[], Answer], is_gone: Callable[[], bool]) -> Answer:
        """What `think` returns in a process that has everything as it is now, or a little later.

        Raises TooManyQuestionsError, UnansweredError or ThoughtError.
        """
        queue = self._waiting.setdefault(uid, deque())
        if len(queue) >= MOST_EACH:
            raise TooManyQuestionsError
        question = _Question(think, is_gone, asyncio.get_running_loop().create_future())
        queue.append(question)
        self._next()
        return cast(Answer, await question.answer)

    def _next(self) -> None:
        while self._child is None and (questions := self._taken()):
            try:
                self._child = _Child(questions, self._free)
            except OSError as error:
                for question in questions:
                    question.give_up(f"no process could be started: {error.strerror}")

    def _free(self) -> None:
        self._child = None
        self._next()

    def _taken(self) -> list[_Question]:
        """The first of each user that somebody still waits for."""
        taken = []
        for uid, queue in list(self._waiting.items()):
            while queue and (queue[0].answer.done() or queue[0].is_gone()):
                queue.popleft().give_up("nobody waits for it")
            if queue:
                taken.append(queue.popleft())
            if not queue:
                del self._waiting[uid]
        return taken


class _Child:
    """One fork, from its birth until it is collected; `done` is called when nothing more is to come of it."""

    def __init__(self, questions: list[_Question], done: Callable[[], None]) -> None:
        self._questions = deque(questions)
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._pid = 0
        self._pipe, writing = os.pipe2(os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # users have a limit of such memory together
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        try:
            self._pid = fork_deaf()
            if not self._pid:
                _think([question.think for question in questions], writing)
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(writing)
        self._pidfd = os.pidfd_open(self._pid)
        os.set_blocking(self._pipe, False)
        self._loop.add_reader(self._pipe, self._readable)
        self._loop.add_reader(self._pidfd, self._collect)

    def _readable(self) -> None:
        if not self._read():
            self._loop.remove_reader(self._pipe)

    def _read(self) -> bool:
        """Whether more may come."""
        try:
            data = os.read(self._pipe, _READ_BYTES)
        except BlockingIOError:
            return True
        self._received += data
        while len(self._received) >= _HEAD.size:
            answered, length = _HEAD.unpack_from(self._received)
            end = _HEAD.size + length
            if len(self._received) < end:
                break
            content = bytes(memoryview(self._received)[_HEAD.size : end])
            del self._received[:end]
            self._say(self._questions.popleft(), answered, content)
            if not self._questions:
                self._done()
        return bool(data)

    def _say(self, question: _Question, answered: bool, content: bytes) -> None:
        if question.answer.done():
            return
        if answered:
            question.answer.set_result(pickle.loads(content))  # written by this program a moment ago
        else:
            question.answer.set_exception(ThoughtError(content.decode(errors="replace")))

    def _collect(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._loop.remove_reader(self._pipe)
        while self._read():
            pass
        self._bury()
        if self._questions:
            for question in self._questions:
                question.give_up("the process that thought about it was ended")
            self._done()

    def _bury(self) -> None:
        """Of a child that has ended, or is about to."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        self._pid = 0
        os.close(self._pidfd)
        os.close(self._pipe)

    def __del__(self) -> None:
        """Of a loop that ended before its child nothing is left either."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            self._bury()


def _think(thoughts: list[Callable[[], Any]], pipe: int) -> NoReturn:
    """The child's whole life. It ends without unwinding: what it has is its parent's to close."""
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGXCPU):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
        close_all_but([pipe])
        gc.disable()  # to look at everything is to copy everything
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_S, MOST_S + 1))
        os.nice(_NICE)
        with contextlib.suppress(OSError):
            file = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
            os.write(file, _FIRST_TO_GO)
        for think in thoughts:
            _send(pipe, *_answered(think))
        os._exit(0)
    finally:
        os._exit(1)


def _answered(think: Callable[[], Any]) -> tuple[bool, bytes]:
    try:
        return True, pickle.dumps(think(), pickle.HIGHEST_PROTOCOL)
    except Exception:
        return False, traceback.format_exc().encode(errors="replace")


def _send(pipe: int, answered: bool, content: bytes) -> None:
    for part in (_HEAD.pack(answered, len(content)), content):
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(pipe, rest) :]
