"""What surrounds a command: its variables, who asks, where its text goes, and who answers its questions.

Set by whoever runs a command, for the time that it runs: `cli/near.py` in the process that a user started,
`api/routes/commands.py` in the daemon. Commands ask `around()`.

Invariant: what belongs to one who asks is never seen by a command of another: the surroundings are a context's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn, Protocol

OWN_COMMAND = "ESLURM_OWN_COMMAND"
"""The daemon's word for: this is for Slurm's own command (`Surroundings.become_slurms_own`)."""


class NearError(Exception):
    """This has to run in the process of who asked: it reads the terminal, waits, or would take too much here."""


class Port(Protocol):
    """Questions to the cluster, on behalf of who asks. Refusals are `ApiError`, silence is `BiremeUnavailable`."""

    patience_s: float
    asked_before: bool
    """The daemon had what will be asked already, and ended before it answered."""

    def get(self, path: str, params: Mapping[str, Any] | None = None, *, timeout_s: float | None = None) -> Any: ...

    def get_bytes(self, path: str, params: Mapping[str, Any] | None = None) -> bytes: ...

    def post(
        self,
        path: str,
        body: Any = None,
        params: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Any: ...


class Surroundings(Protocol):
    command: str
    """Its name: what remarks begin with."""

    @property
    def environment(self) -> Mapping[str, str]: ...

    @property
    def uid(self) -> int: ...

    @property
    def gid(self) -> int: ...

    @property
    def user(self) -> str:
        """The name of the user; in digits where nobody knows one."""

    @property
    def folder(self) -> str:
        """The working folder."""

    @property
    def umask(self) -> int: ...

    @property
    def nice(self) -> int: ...

    @property
    def key(self) -> str:
        """What makes a submission known again that is sent a second time, because its answer was lost."""

    @property
    def host(self) -> str:
        """The name of the machine of who asks."""

    def write(self, text: str) -> None:
        """Writes text to standard output."""

    def write_bytes(self, data: bytes) -> None:
        """To standard output, as they are: what is their user's own."""

    def tell(self, text: str) -> None:
        """A line to standard error."""

    def remark(self, line: str, end: str) -> None:
        """A line to standard error in one piece, whoever else writes there; nobody need listen."""

    def read_file(self, *places: str) -> bytes:
        """The first of these that is a readable file, with the rights of who asks; "": standard input.

        Where none is, what opening the last one raises.
        """

    def flush(self) -> None: ...

    def abandon_output(self) -> None:
        """Nobody reads it any more."""

    def port(self, *, may_be_slurms: bool = False, acts: bool = False) -> Port:
        """`may_be_slurms`: a Slurm cluster may answer this command itself; then it does not come back.

        `acts`: it is of a command that changes something.
        """

    def become_slurms_own(self, port: Port) -> NoReturn:
        """The cluster is Slurm's, and its own command of this name answers."""

    def only_near(self) -> None:
        """What follows needs the process of who asked. Raises NearError elsewhere."""

    @property
    def leaves_waiting(self) -> bool:
        """Whether waiting for a job's end is left to the process of who asked, which can (`leave_waiting`)."""

    def leave_waiting(self, job: str) -> None:
        """Has that process wait for the end of this job, and end as it does, once all is said."""

    def keep_small(self, count: int, most: int) -> None:
        """What follows makes so many things. Raises NearError where others would wait for more than `most`."""

    def go_on(self) -> None:
        """Between two steps of something long. Raises where nobody waits for it any more, or others wait too long."""

    def user_id(self, name: str) -> int | None:
        """The uid of the user of this name; None where nobody has it."""

    def group_id(self, name: str) -> int | None: ...


_AROUND: ContextVar[Surroundings] = ContextVar("bireme.surroundings")


def around() -> Surroundings:
    return _AROUND.get()


@contextmanager
def surrounded_by(these: Surroundings) -> Iterator[None]:
    token = _AROUND.set(these)
    try:
        yield
    finally:
        _AROUND.reset(token)


def surround(these: Surroundings) -> None:
    """For the rest of this process (or thread)."""
    _AROUND.set(these)
