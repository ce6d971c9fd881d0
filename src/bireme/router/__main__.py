"""`python -m bireme.router --home FOLDER ...`: the supervisor; with `--worker`, one of its workers."""

from __future__ import annotations

import asyncio
import logging
import sys

import msgspec
import uvloop

from bireme.rationed_log import RationedHandler
from bireme.router import inner, settings, worker
from bireme.router.premises import RouterError
from bireme.router.supervisor import Supervisor


def main() -> int:
    handler = RationedHandler(logging.StreamHandler())
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s router %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    if sys.argv[1:2] == ["--worker"]:
        worker.run(msgspec.json.decode(sys.argv[2], type=inner.Start))
        return 0
    given = settings.from_words(sys.argv[1:])
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_supervise(given))
    except RouterError as error:
        print(f"bireme router: {error}", file=sys.stderr)
        return 1
    return 0


async def _supervise(given: settings.Settings) -> None:
    await Supervisor(given).run()


if __name__ == "__main__":
    sys.exit(main())
