"""python -m bireme.web: serves the pages until the daemon ends (`daemon/web` starts it).

What it needs of the disk is read first; then, where the daemon is root, it becomes nobody: it has no right of its own,
neither to files nor at the daemon's socket. Invariant: it does not outlive the daemon (the pipe that is its standard
input ends with it).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import sys

import uvicorn

from bireme.web.app import create_app
from bireme.web.connections import Pages, Said
from bireme.web.guards import Place
from bireme.web.upstream import Upstream

_NOBODY = 65534
_KEEP_ALIVE_S = 75


def main() -> int:
    given = _parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    listener = socket.socket(fileno=given.listener)
    secure = bool(given.tls_certificate) or given.behind_tls
    place = Place(listener.getsockname()[1], given.prefix, secure)
    config = uvicorn.Config(
        create_app(place, Upstream(given.api)),
        http=Pages,
        loop="asyncio",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        ssl_certfile=given.tls_certificate or None,
        ssl_keyfile=given.tls_key or None,
    )
    config.load()
    if os.geteuid() == 0:
        _become_nobody()
    server = uvicorn.Server(config)
    asyncio.run(_serve(server, listener))
    return 0


async def _serve(server: uvicorn.Server, listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()

    def ends() -> None:
        loop.remove_reader(sys.stdin)
        server.should_exit = server.force_exit = True

    loop.set_exception_handler(Said())
    loop.add_reader(sys.stdin, ends)  # nothing is ever written there
    await server.serve([listener])


def _become_nobody() -> None:
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bireme.web", description="The pages, for the daemon.")
    parser.add_argument("--api", required=True, help="the daemon's socket")
    parser.add_argument("--listener", type=int, required=True, help="the descriptor of a listening socket")
    parser.add_argument("--prefix", default="", help="the path that all pages are below")
    parser.add_argument("--behind-tls", action="store_true", help="browsers come over TLS, which a proxy ends")
    parser.add_argument("--tls-certificate", default="")
    parser.add_argument("--tls-key", default="")
    return parser


if __name__ == "__main__":
    sys.exit(main())
