"""bireme top: the loop. Draws, waits for a key or the time of the next frame, asks the daemon again.

A key is answered at once, from what is known; the daemon is asked once a frame. Into a pipe it prints one plain shot.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from bireme.cli.parsing import Arguments
from bireme.cli.top.job_page import draw_job
from bireme.cli.top.looking import LAST_S, JobPicture, Picture, Watch
from bireme.cli.top.screen import draw, draw_help, on_screen
from bireme.cli.top.view import View, pressed
from bireme.client.transport import Transport
from bireme.commands.voice import run_command

_WIDTH_ELSEWHERE = 140  # into a file or a pipe
_NAMES = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[C": "right", b"\x1b[D": "left", b"\x1bOA": "up", b"\x1bOB": "down",
    b"\x1b[5~": "page up", b"\x1b[6~": "page down", b"\x1b[H": "home", b"\x1b[F": "end", b"\x1b": "escape",
    b"\x1bOH": "home", b"\x1bOF": "end", b"\x1b[1~": "home", b"\x1b[4~": "end", b"\x1b[7~": "home", b"\x1b[8~": "end",
    b"\x1bOC": "right", b"\x1bOD": "left",
    b"\r": "enter", b"\n": "enter", b"\x7f": "backspace", b"\x08": "backspace", b"": "end of input",
    b"\x04": "end of input",
}  # fmt: skip


def main(argv: list[str]) -> int:
    return run_command("bireme top", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    parser = Arguments(
        prog="bireme top",
        description="GPUs with their real use, nodes and the queue, live. ? shows the keys, q leaves.",
    )
    parser.add_argument("--once", action="store_true", help="print one frame and leave")
    parser.add_argument(
        "-d", "--delay", type=float, default=1.0, metavar="S", help="seconds between frames (default 1)"
    )
    parser.add_argument("--home", default=None, metavar="DIR", help="the cluster's state (default: $BIREME_HOME)")
    given = parser.parse_args(argv)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH_ELSEWHERE)
    with Transport(given.home) as transport:
        watch = Watch(transport)
        if given.once or not sys.stdout.isatty():
            console.print(draw(watch.picture(), None, console.width))
            return 0
        first = watch.picture()
        transport.patience_s = 2.0
        Screen(watch, console, first).run(max(0.1, given.delay))
        return 0


class Screen:
    """What is on the terminal until somebody leaves."""

    def __init__(self, watch: Watch, console: Console, first: Picture) -> None:
        self._watch, self._console, self._picture = watch, console, first
        self._view, self._page = View(), JobPicture([], [])

    def run(self, delay_s: float) -> None:
        with _keys() as key_within, Live(self._drawn(), console=self._console, screen=True, auto_refresh=False) as live:
            while self._view.mode != "over":
                self._look()
                live.update(self._drawn(), refresh=True)
                self._answer_keys(key_within, delay_s, live)

    def _answer_keys(self, key_within: Callable[[float], str | None], delay_s: float, live: Live) -> None:
        """Until the next frame is due."""
        due = time.monotonic() + delay_s
        while self._view.mode != "over" and (left := due - time.monotonic()) > 0:
            key = key_within(left)
            if key is not None:
                before, self._view = self._view, pressed(self._view, key, self._picture)
                if self._view.mode in ("job", "log") and before.mode != self._view.mode:
                    self._look_at_job()
                live.update(self._drawn(), refresh=True)

    def _look(self) -> None:
        self._picture = self._watch.picture()
        if self._view.mode in ("job", "log"):
            self._look_at_job()
        else:
            rows = max(5, self._console.height)
            self._watch.refresh(on_screen(self._picture, self._view, rows), self._picture.about["now"])

    def _look_at_job(self) -> None:
        job = self._job()
        if job is not None:
            points = max(10, min(int(LAST_S / 10), self._console.width - 45))
            self._page = self._watch.job(job, self._picture.about["now"], points, self._console.height)

    def _job(self) -> dict[str, Any] | None:
        return next((job for job in self._picture.jobs if job["job_id"] == self._view.selected), None)

    def _drawn(self) -> RenderableType:
        width, height = self._console.size
        if self._view.mode == "help":
            return draw_help()
        if self._view.mode in ("job", "log"):
            job = self._job()
            if job is None:
                text = f"job {self._view.selected} is over: bireme timeline {self._view.selected} tells how it went"
                return Text(f"{text}\n\nescape back   q quit")
            return draw_job(job, self._page, width, height, only_log=self._view.mode == "log")
        return draw(self._picture, height, width, self._view)


@contextmanager
def _keys() -> Iterator[Callable[[float], str | None]]:
    """A function that waits so many seconds for a key, and says which it was."""
    if not sys.stdin.isatty():
        yield _slept
        return
    before = termios.tcgetattr(0)
    tty.setcbreak(0)
    waiting: list[str] = []

    def key_within(seconds: float) -> str | None:
        if not waiting and select.select([0], [], [], seconds)[0]:
            waiting.extend(keys_of(os.read(0, 64)))
        return waiting.pop(0) if waiting else None

    try:
        yield key_within
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def _slept(seconds: float) -> None:
    """Where there are no keys, only time passes."""
    time.sleep(seconds)


def keys_of(data: bytes) -> list[str]:
    """The keys in what a terminal sent: several may come at once. Unknown sequences are passed over."""
    if not data:
        return ["end of input"]
    found: list[str] = []
    while data:
        sequence = next((name for name in _NAMES if len(name) > 1 and data.startswith(name)), None)
        if sequence is None and data[:2] in (b"\x1b[", b"\x1bO") and len(data) > 2:
            end = next((place for place in range(2, len(data)) if 0x40 <= data[place] <= 0x7E), len(data) - 1)
            data = data[end + 1 :]
            continue
        taken = sequence if sequence is not None else data[:1]
        data = data[len(taken) :]
        if taken in _NAMES:
            found.append(_NAMES[taken])
        elif taken.isascii() and taken.decode().isprintable():
            found.append(taken.decode())
    return found
