"""bireme services: all services, one line each; as JSON; or again and again."""

from __future__ import annotations

import json
import sys
import time

from bireme.cli.connection import make_transport
from bireme.cli.parsing import Arguments
from bireme.cli.serving.pages import RouterWords, services_table
from bireme.client.transport import ApiError, BiremeUnavailable, Transport
from bireme.commands.voice import refused_by_daemon, run_command
from bireme.slurm.formats.visible import visible_values

_AGAIN_S = 1.0
_CLEAR = b"\x1b[H\x1b[2J"


def main(argv: list[str]) -> int:
    return run_command("bireme services", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    parser = Arguments(
        prog="bireme services",
        description="List the services: how each stands, how many of its replicas are ready, and its address.",
    )
    parser.add_argument("-u", "--user", help="only those of these users, separated by commas")
    parser.add_argument("--json", action="store_true", help="the whole records, as JSON")
    parser.add_argument("-w", "--watch", action="store_true", help="show it again whenever it changes, until Ctrl-C")
    given = parser.parse_args(argv)
    with make_transport() as transport:
        if given.json and not given.watch:
            print(json.dumps(_asked(transport, given.user), indent=2))
        elif not given.watch:
            print(_text(transport, given.user))
        else:
            _watch(transport, given.user)
    return 0


def _asked(transport: Transport, user: str | None) -> list[dict[str, object]]:
    try:
        return list(transport.get("/v1/services", {"user": user} if user else None)["services"])
    except (ApiError, BiremeUnavailable) as error:
        raise refused_by_daemon("", error) from error


def _text(transport: Transport, user: str | None) -> str:
    services = _asked(transport, user)
    lines = list(services_table(visible_values(services)))
    if services:
        about = router_of(transport)
        lines += [f"None of them can be reached: {text}; see: bireme doctor" for text in about.problems]
        lines += [f"Note: {text}; see: bireme doctor" for text in about.warnings]
    return "\n".join(lines)


def router_of(transport: Transport) -> RouterWords:
    """What the daemon says of the router: why none answers where one should, or what is not well with it, or with the
    journal, without which it is told nothing new."""
    try:
        told = transport.get("/v1/ping")
    except (ApiError, BiremeUnavailable) as error:
        raise refused_by_daemon("", error) from error
    about = told.get("router") or {}
    problems, warnings = ([str(about[word])] if about.get(word) else [] for word in ("problem", "warning"))
    if told.get("journal"):
        warnings.append(f"nothing changes until there is room: {told['journal']}")
    return RouterWords(problems, warnings)


def _watch(transport: Transport, user: str | None) -> None:
    transport.patience_s = 60.0  # it may be restarted meanwhile; the services run on
    shown = ""
    while True:
        text = _text(transport, user)
        if text != shown:
            if sys.stdout.isatty():
                sys.stdout.buffer.write(_CLEAR)  # as bytes: in text an order to the terminal is shown, not obeyed
            elif shown:
                print()
            print(text, flush=True)
        shown = text
        time.sleep(_AGAIN_S)
