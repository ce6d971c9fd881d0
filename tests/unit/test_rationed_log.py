"""The rationed log: what repeats itself is counted instead of written, and nothing is left out in silence."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from bireme.rationed_log import LONGEST_LINE, RationedHandler


class Written(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


class Bench:
    """A logger on a rationed handler, with a clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.written = Written()
        self.handler = RationedHandler(
            self.written, burst_alike=3, alike_every_s=10.0, burst=8, every_s=1.0, clock=lambda: self.now
        )
        self.log = logging.Logger("bench")
        self.log.addHandler(self.handler)

    def complain(self, times: int) -> None:
        for number in range(times):
            self.log.error("request %d failed", number)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_line_that_repeats_itself_is_counted(bench: Bench) -> None:
    bench.complain(1000)
    assert bench.written.lines == [f"ERROR request {number} failed" for number in range(3)]
    bench.now = 10.0
    bench.complain(1)
    assert bench.written.lines[3:] == ["ERROR request 0 failed [997 more lines like this in 10 s were left out]"]
    bench.now = 60.0
    bench.complain(1)
    assert bench.written.lines[4:] == ["ERROR request 0 failed"]


def test_other_lines_are_written_beside_it_and_tell_of_it(bench: Bench) -> None:
    bench.complain(100)
    bench.log.warning("something else")
    assert bench.written.lines[3:] == ["WARNING something else"]
    bench.now = 10.0
    bench.log.warning("something else again")
    told, again = bench.written.lines[4:]
    assert told.startswith("ERROR 97 more lines like this in 10 s were left out (test_rationed_log.py:")
    assert again == "WARNING something else again"


def test_many_places_together_have_a_ration(bench: Bench) -> None:
    for line in range(100):
        bench.log.handle(logging.LogRecord("bench", logging.ERROR, "made_up.py", line, "line %d", (line,), None))
    assert len(bench.written.lines) == 8


def test_what_ends_the_process_is_always_written(bench: Bench) -> None:
    for _ in range(20):
        bench.log.critical("the end")
    assert len(bench.written.lines) == 20


def test_the_end_tells_what_was_left_out(bench: Bench) -> None:
    bench.complain(5)
    bench.handler.close()
    assert bench.written.lines[-1].startswith("ERROR 2 more lines like this")


def test_a_long_line_is_cut(bench: Bench) -> None:
    bench.log.error("you said %s", "x" * 1_000_000)
    (line,) = bench.written.lines
    assert len(line) < LONGEST_LINE + 100
    assert line.endswith("(1000009 characters)")


def test_lines_keep_the_form_of_the_handler_that_writes(tmp_path: Path) -> None:
    """`basicConfig` gives its own form to handlers that have none: a log without times."""
    file = tmp_path / "log"
    inner = logging.FileHandler(file)
    inner.setFormatter(logging.Formatter("AT THE TIME %(message)s"))
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        logging.basicConfig(level=logging.INFO, handlers=[RationedHandler(inner)], force=True)
        logging.getLogger("bireme.test").info("something")
    finally:
        for handler in list(root.handlers):
            root.removeHandler(handler)
            handler.close()
        root.setLevel(level)
        for handler in before:
            root.addHandler(handler)
    assert file.read_text() == "AT THE TIME something\n"
