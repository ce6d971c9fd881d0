"""`python -m bireme.gather`: the gatherer as a process of its own, started by the daemon and outliving it.

It holds a lock in its folder for as long as it lives: whoever asks the kernel who holds it finds its pid.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import logging
import os
import signal
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path

from bireme.gather.gatherer import Gatherer
from bireme.gather.gpus.telling import gpus_of
from bireme.gather.owners import AgentOwners
from bireme.gather.spool import Spool
from bireme.rationed_log import RationedHandler

LOCK = "lock"
_LOG_BYTES = 4 * 1024 * 1024


def main() -> int:
    given = _arguments().parse_args()
    folder = Path(given.folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print("bireme gather: another one gathers here already", file=sys.stderr)
        return 1
    _log_to(given.log)
    asyncio.run(_run(given, folder))
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bireme gather", description=__doc__)
    parser.add_argument("--folder", required=True, help="where it keeps what the daemon has not confirmed")
    parser.add_argument("--agents", required=True, help="the folder of the agents' sockets")
    parser.add_argument("--daemon", required=True, help="the daemon's socket for telemetry")
    parser.add_argument("--machine", required=True, help="what the machine as a whole is called")
    parser.add_argument("--log", required=True, help="its log file")
    return parser


async def _run(given: argparse.Namespace, folder: Path) -> None:
    spool = Spool(folder)
    gpus = gpus_of(given.machine)
    gatherer = Gatherer(given.machine, AgentOwners(Path(given.agents)), gpus, spool, given.daemon)
    work = asyncio.create_task(gatherer.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        logging.getLogger("bireme.gather").info("ended by a signal")
    finally:
        gpus.stop()
        spool.close()


def _log_to(path: str) -> None:
    handler = RotatingFileHandler(path, maxBytes=_LOG_BYTES, backupCount=1, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[RationedHandler(handler)], force=True)


if __name__ == "__main__":
    sys.exit(main())
