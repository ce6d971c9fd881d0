"""Which processes of a router live, as the process table says: for when its folder cannot say so.

The folder may have been removed, or a supervisor may hold it and not answer. A supervisor's command line names the
folder; a worker's has the settings that it was started with. Asked by the daemon's side of the router when it is to be
replaced or ended, by `bireme doctor` and `status`. Not here: who holds the folder (its lock) and who listens there
(its socket), which are asked first.
Invariant: processes of the asker's own user only: a command line is anybody's to choose.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import msgspec

from bireme.agent.system.processes import command_words, owned_by

_MODULE = b"bireme.router"


@dataclass(frozen=True, slots=True)
class Living:
    """The pids of a router's processes."""

    supervisors: tuple[int, ...] = ()
    workers: tuple[int, ...] = ()

    @property
    def pids(self) -> tuple[int, ...]:
        return self.supervisors + self.workers

    def __bool__(self) -> bool:
        return bool(self.pids)


class _Home(msgspec.Struct):
    home: str


class _Started(msgspec.Struct):
    """The part of a worker's orders that says whose it is; the rest may be of another release."""

    settings: _Home


def living(home: str) -> Living:
    """All that serve this folder, whether or not it is there."""
    words = {pid: command_words(pid) for pid in owned_by(os.geteuid())}
    ours = {pid: said[said.index(_MODULE) + 1 :] for pid, said in words.items() if _MODULE in said}
    return Living(
        tuple(sorted(pid for pid, said in ours.items() if said[:2] == [b"--home", os.fsencode(home)])),
        tuple(sorted(pid for pid, said in ours.items() if _worker_of(said) == home)),
    )


def _worker_of(words: list[bytes]) -> str:
    """The folder of a worker's router; empty: it is none."""
    if words[:1] != [b"--worker"] or len(words) < 2:
        return ""
    try:
        return msgspec.json.decode(words[1], type=_Started).settings.home
    except msgspec.DecodeError:
        return ""
