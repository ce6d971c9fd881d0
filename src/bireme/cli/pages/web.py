"""bireme web: a link that logs whoever types it in to the pages; who is logged in, and how that ends.

The daemon gives the link (it knows by the socket who asks); here it is printed, and opened where there is a display.
Invariant: a link stands in no argument list, where other users of the machine could read it.
"""

from __future__ import annotations

import html
import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from bireme.cli.connection import make_transport
from bireme.cli.parsing import Arguments
from bireme.client.transport import ApiError, BiremeUnavailable
from bireme.commands.reports import make_stamp
from bireme.commands.voice import CommandFailure, refused_by_daemon, run_command
from bireme.core.explain.wording import counted
from bireme.slurm.formats.visible import visible

_DESCRIPTION = """\
Print a link that logs you in to the pages, once and within five minutes, and open it where there is a display. The
pages are served on this machine alone unless the settings say otherwise (docs/web.md); from another one:
ssh -L PORT:127.0.0.1:PORT HOST, with the port of the link."""


def main(argv: list[str]) -> int:
    verbs = {"sessions": _sessions, "revoke": _revoke, "off": _off}
    verb = verbs.get(argv[0]) if argv else None
    return run_command("bireme web", lambda: verb(argv[1:]) if verb is not None else _link(argv))


def _link(argv: list[str]) -> int:
    parser = Arguments(
        prog="bireme web",
        description=_DESCRIPTION,
        epilog="Also: bireme web sessions (who is logged in), bireme web revoke (end that), bireme web off.",
    )
    parser.add_argument("--no-open", action="store_true", help="print the link and open no browser")
    parser.add_argument("--json", action="store_true", help="as JSON; opens no browser")
    given = parser.parse_args(argv)
    told = _asked("POST", "/v1/web/links")
    if given.json:
        print(json.dumps(told, indent=2))
        return 0
    print(f"{told['url']}\nGood once, for {told['good_for_s'] / 60:.0f} minutes; it logs you in as {told['user']}.")
    if not given.no_open and sys.stdout.isatty():
        _open(told["url"])
    return 0


def _open(url: str) -> None:
    """By a page of this user's own that leads there. What cannot be opened was printed."""
    opener = shutil.which("xdg-open") or shutil.which("open")
    if opener is None or not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or opener.endswith("/open")
    ):
        return
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bireme"
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        page = folder / "login.html"
        page.unlink(missing_ok=True)
        with os.fdopen(os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(url)}">')
        nothing = subprocess.DEVNULL
        subprocess.Popen([opener, str(page)], start_new_session=True, stdin=nothing, stdout=nothing, stderr=nothing)


def _sessions(argv: list[str]) -> int:
    parser = Arguments(prog="bireme web sessions", description="Who is logged in to the pages as you.")
    parser.add_argument("--all", action="store_true", help="as anybody; for operators")
    parser.add_argument("--json", action="store_true", help="as JSON")
    given = parser.parse_args(argv)
    told = _asked("GET", "/v1/web/sessions", params={"all": "1"} if given.all else None)
    if given.json:
        print(json.dumps(told, indent=2))
        return 0
    stamp = make_stamp("", told["now"])
    rows = [
        (each["id"], each["user"], stamp(each["made_at"]), stamp(each["seen_at"]), stamp(each["ends_at"]),
         visible(each["about"]) or "-")
        for each in told["sessions"]
    ]  # fmt: skip
    if not rows:
        print("Nobody is logged in. bireme web prints a link.")
        return 0
    head = ("SESSION", "USER", "SINCE", "LAST USED", "ENDS", "BROWSER")
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]
    for row in [head, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    return 0


def _revoke(argv: list[str]) -> int:
    parser = Arguments(prog="bireme web revoke", description="End sessions: who has one is logged out at once.")
    parser.add_argument("sessions", nargs="*", metavar="SESSION", help="as bireme web sessions prints them")
    parser.add_argument("--all", action="store_true", help="all of yours, and links that you have not used")
    parser.add_argument("--everybody", action="store_true", help="everybody's; for operators")
    given = parser.parse_args(argv)
    if (bool(given.sessions), given.all, given.everybody).count(True) != 1:
        raise CommandFailure("say which: SESSION (bireme web sessions lists them), --all or --everybody")
    body: dict[str, Any] = {"sessions": given.sessions} if given.sessions else {}
    told = _asked("POST", "/v1/web/sessions/revoke", {**body, "all": given.all, "everybody": given.everybody})
    print(f"{counted(len(told['ended']), 'session')} ended.")
    missing = [each for each in given.sessions if each not in told["ended"]]
    if missing:
        raise CommandFailure(f"there is no session {missing[0]} of yours: bireme web sessions lists them")
    return 0


def _off(argv: list[str]) -> int:
    Arguments(
        prog="bireme web off",
        description="Serve no pages any more, until an operator types bireme web. For operators.",
    ).parse_args(argv)
    _asked("POST", "/v1/web/off")
    print("The pages are off. bireme web switches them on again.")
    return 0


def _asked(method: str, path: str, body: Any = None, params: dict[str, str] | None = None) -> Any:
    with make_transport() as transport:
        try:
            return transport.get(path, params) if method == "GET" else transport.post(path, body)
        except (ApiError, BiremeUnavailable) as error:
            raise refused_by_daemon("", error) from error
