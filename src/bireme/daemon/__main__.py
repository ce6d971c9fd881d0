"""`python -m bireme.daemon --home HOME`: the daemon's process. People use `bireme up`, which starts this.

Leaves its parent and terminal first, while little is imported, then becomes the daemon.
"""

from __future__ import annotations

import argparse
import os
import sys

from bireme.collector import nothing_collected


def main() -> int:
    arguments = argparse.ArgumentParser(prog="bireme.daemon", description="The daemon behind `bireme up`.")
    arguments.add_argument("--home", required=True)
    arguments.add_argument("--conf", default="")
    arguments.add_argument("--engine", default="")
    arguments.add_argument("--ready-fd", type=int, default=None, help="told when the API answers, or why it will not")
    arguments.add_argument("--foreground", action="store_true", help="stay attached to the terminal")
    given = arguments.parse_args()
    if not given.foreground:
        if os.fork():
            os._exit(0)
        os.setsid()
    os.umask(0o022)
    with nothing_collected():  # a tenth of the time that it takes
        # Late: forking is cheap only while little is imported.
        from bireme.daemon.app import serve
        from bireme.daemon.process import Readiness
        from bireme.daemon.settings import load

    return serve(given.home, lambda: load(given.home, given.conf, engine=given.engine), Readiness(given.ready_fd))


if __name__ == "__main__":
    sys.exit(main())
