"""`python -m bireme.gather`: the gatherer as a process of its own, started by the daemon and outliving it.

It holds a lock in its folder for as long as it lives: whoever asks the kernel who holds it finds its pid.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path

from bireme.gather import dialling
from bireme.gather.gatherer import Gatherer
from bireme.gather.gpus.telling import ToldGpus, gpus_of
from bireme.gather.living import TakenError, hold, live
from bireme.gather.owners import AgentOwners, Owners
from bireme.gather.rehearsal.playing import rehearsed
from bireme.rationed_log import RationedHandler

_LOG_BYTES = 4 * 1024 * 1024


def main() -> int:
    given = _arguments().parse_args()
    folder = Path(given.folder)
    try:
        hold(folder)
    except TakenError as error:
        print(f"bireme gather: {error}", file=sys.stderr)
        return 1
    _log_to(given.log)
    owners, gpus = _looked_at(given)
    dial = dialling.local(given.daemon)
    asyncio.run(live(gpus, folder, lambda gpus, spool: Gatherer(given.machine, owners, gpus, spool, dial)))
    return 0


def _looked_at(given: argparse.Namespace) -> tuple[Owners, ToldGpus]:
    """This machine, or what a rehearsal plays."""
    agents = Path(given.agents)
    if given.rehearsal:
        return rehearsed(Path(given.rehearsal), agents, given.machine)
    return AgentOwners(agents), gpus_of(given.machine)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bireme gather", description=__doc__)
    parser.add_argument("--folder", required=True, help="where it keeps what the daemon has not confirmed")
    parser.add_argument("--agents", required=True, help="the folder of the agents' sockets")
    parser.add_argument("--daemon", required=True, help="the daemon's socket for telemetry")
    parser.add_argument("--machine", required=True, help="what the machine as a whole is called")
    parser.add_argument("--rehearsal", default="", help="the folder of a scene that is played instead of the machine")
    parser.add_argument("--log", required=True, help="its log file")
    return parser


def _log_to(path: str) -> None:
    handler = RotatingFileHandler(path, maxBytes=_LOG_BYTES, backupCount=1, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[RationedHandler(handler)], force=True)


if __name__ == "__main__":
    sys.exit(main())
