"""The whole suite: what `make test` runs once everything is installed, as `python -m tests.suite`.

One call of pytest with three workers (`tests/support/beside.py` says what stays together, and what begins first). At
the end the twenty slowest tests are printed, and what took longest of what stays together.

With `--again` (CI) a test that fell is run once more by itself. If it passes then, it is printed as FLAKY with its
first failure, and the run is green; if it falls twice, or if so many fell that chance is no explanation, it is red.
Without it a fallen test is simply red: on a developer's machine it is a bug until shown otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.beside import LONGEST, scope_of
from tests.support.fallen import FILE

PARTS = (("-n", "3", "--no-loadscope-reorder", "tests"),)
"""The calls of pytest."""
MOST_AGAIN = 12
"""More than this do not fall by chance."""
SLOWEST = 20
ALL_PASSED, SOME_FELL = 0, 1
"""pytest's exit codes that say that the tests were run."""


@dataclass
class Outcome:
    """What one call of pytest said: its exit code, why each fallen test fell, and the seconds each test took."""

    code: int
    failures: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def may_be_chance(self) -> bool:
        """Some tests fell, and pytest itself did not."""
        return self.code == SOME_FELL and 0 < len(self.failures) <= MOST_AGAIN


def run(arguments: tuple[str, ...]) -> Outcome:
    """One call of pytest, its output going where ours goes."""
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "fallen.json"
        command = [sys.executable, "-m", "pytest", "-p", "tests.support.fallen", *arguments]
        code = subprocess.run(command, env={**os.environ, FILE: str(notes)}, check=False).returncode
        if not notes.exists():  # pytest did not get as far as that
            return Outcome(code)
        return Outcome(code, **json.loads(notes.read_text()))


def run_again(fallen: Iterable[str]) -> list[str]:
    """Those of the fallen that fall a second time, run by themselves: one call of pytest each, without workers."""
    return [test for test in fallen if run((test,)).code != ALL_PASSED]


@dataclass
class Verdict:
    """What is said of the whole at its end."""

    red: list[str] = field(default_factory=list)
    flaky: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, part: tuple[str, ...], outcome: Outcome, *, again: bool) -> None:
        self.seconds |= outcome.seconds
        if again and outcome.may_be_chance:
            print(f"\n{len(outcome.failures)} fell; each is run once more by itself", flush=True)
            twice = run_again(outcome.failures)
            self.flaky |= {test: why for test, why in outcome.failures.items() if test not in twice}
            self.red += twice
        elif outcome.code != ALL_PASSED:
            self.red += outcome.failures or [f"pytest {' '.join(part)} (exit code {outcome.code})"]

    def print(self) -> None:
        print(f"\nthe {SLOWEST} slowest of {len(self.seconds)} tests, with what they set up:")
        for test, taken in sorted(self.seconds.items(), key=lambda entry: -entry[1])[:SLOWEST]:
            print(f"{taken:7.1f} s  {test}")
        print("\nwhat took longest of what stays with one worker (it is to begin first: LONGEST in support/beside.py):")
        for scope, taken in seconds_by_scope(self.seconds).most_common(len(LONGEST)):
            print(f"{taken:7.1f} s  {scope}")
        for test, failure in self.flaky.items():
            print(f"\nFLAKY {test} passed when it was run again by itself. First it fell {failure}")
        for word, tests in (("FLAKY", self.flaky), ("FAILED", self.red)):
            if tests:
                print(f"\n{len(tests)} {word}:")
                for test in tests:
                    print(f"  {word} {test}")


def seconds_by_scope(seconds: dict[str, float]) -> Counter[str]:
    together: Counter[str] = Counter()
    for test, taken in seconds.items():
        together[scope_of(test.partition("::")[0])] += taken
    return together


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suite", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--again", action="store_true", help="run a test that fell once more by itself, as CI does")
    again = parser.parse_args(arguments).again
    verdict = Verdict()
    for part in PARTS:
        verdict.add(part, run(part), again=again)
    verdict.print()
    return SOME_FELL if verdict.red else ALL_PASSED


if __name__ == "__main__":
    sys.exit(main())
