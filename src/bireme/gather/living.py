"""A gatherer as a process: the lock that it holds for as long as it lives, signals that end it, its end.

Used by `python -m bireme.gather`, which the daemon starts, and by `bireme node`.
Invariant: of two that are started for one folder, one gathers.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

from bireme.gather.gatherer import Gatherer
from bireme.gather.gpus.telling import ToldGpus
from bireme.gather.spool import Spool

LOCK = "lock"

Make = Callable[[ToldGpus, Spool], Gatherer]


class TakenError(Exception):
    """The refusal of a gatherer for whose folder another one gathers."""


def hold(folder: Path) -> int:
    """Takes the lock of a folder, which is made if it is not there; the kernel gives it back when this process ends.
    Raises TakenError or OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise TakenError("another one gathers here already") from error
    return lock


async def live(gpus: ToldGpus, folder: Path, make: Make) -> None:
    """Gathers until a signal comes, or nobody is needed here any more; then the GPUs are let go."""
    spool = Spool(folder)
    work = asyncio.create_task(make(gpus, spool).run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        logging.getLogger("bireme.gather").info("ended by a signal")
    finally:
        gpus.stop()
        spool.close()
