"""The end of a daemon is bounded: a step that hangs is passed over, and a process that hangs is ended. In processes of
their own, which end as a daemon does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import asyncio, logging, sys, threading
from bireme.daemon.ending import Ending
logging.basicConfig(filename={log!r})
async def hangs():
    await asyncio.Event().wait()
async def fails():
    raise ValueError("broken")
async def main():
    ending = Ending({path!r}, {log!r}, {within_s})
    {steps}
asyncio.run(main())
{after}
"""


def ended(folder: Path, steps: str, after: str = "", within_s: float = 100.0) -> tuple[int, str, str]:
    """The exit code of a process that ends so, what it says that it waits for, and its log."""
    log, path = folder / "log", folder / "ending"
    log.touch()
    program = _PROGRAM.format(log=str(log), path=str(path), steps=steps, after=after, within_s=within_s)
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=120)
    return done.returncode, path.read_text().partition(" ")[2].strip(), log.read_text()


def test_a_step_that_hangs_or_fails_keeps_nobody_from_the_next(tmp_path: Path) -> None:
    steps = "; ".join(
        (
            'await ending.step("requests", hangs(), 0.1)',
            'await ending.step("the router", fails(), 10.0)',
            'await ending.step("the journal", asyncio.sleep(0), 10.0)',
        )
    )
    code, said, log = ended(tmp_path, steps)
    assert (code, said) == (0, "the journal")
    assert "ends without requests" in log
    assert "this failed: the router" in log
    assert "ValueError: broken" in log


def test_a_process_that_does_not_end_is_ended_and_the_log_shows_where_it_hung(tmp_path: Path) -> None:
    code, said, log = ended(
        tmp_path,
        'ending.say("threads")',
        after="def hung():\n    threading.Event().wait()\nthreading.Thread(target=hung).start()",
        within_s=0.5,
    )
    assert (code, said) == (1, "threads")
    assert "in hung" in log


def test_a_home_that_was_removed_keeps_nobody_from_ending(tmp_path: Path) -> None:
    program = (
        "import asyncio\nfrom bireme.daemon.ending import Ending\n"
        f"Ending({str(tmp_path / 'gone' / 'ending')!r}, {str(tmp_path / 'gone' / 'log')!r}).say('nothing')"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=120).returncode == 0
