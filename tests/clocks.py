"""The tests at awkward hours: `python -m tests.clocks [--beside N] [MODULE ...]`, as root, with a C compiler.

Each module is run by a pytest of its own, a few seconds before midnight and just after it, before the end of a month
and of a year, before both changes of summer time and on a leap day, with everything that it starts (daemons, agents,
commands) on the same clock. `support/shifted_clock.c` is loaded into all programs of a mount namespace of our own by
/etc/ld.so.preload, so that one with a clean environment does not escape it; statically linked ones do, which is why
Kubernetes is left out. Slurm is, too: its threads wait until moments of the wall clock, which the kernel keeps. The
times of files are the kernel's as well. Not part of `make test`: it takes the better part of an hour on two cores.
Modules that run beside each other do so in namespaces of their own, each with its own clock.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "tests" / "support" / "shifted_clock.c"
ZONE = ZoneInfo("Europe/Berlin")
PRELOAD, OFFSET = Path("/etc/ld.so.preload"), Path("/etc/bireme-clock")
CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x00020000, 0x1000, 0x4000, 0x40000


@dataclass(frozen=True)
class Hour:
    """A moment at which something about the calendar changes."""

    name: str
    local: datetime
    lead_s: float = 6.0
    """How long before the moment a module begins. pytest itself takes a second of it; the tests of longer modules lie
    on both sides."""

    @property
    def begins(self) -> float:
        return self.local.replace(tzinfo=ZONE).timestamp() - self.lead_s


HOURS = (
    Hour("midnight", datetime(2026, 11, 17)),
    Hour("after midnight", datetime(2026, 11, 17), lead_s=0.0),
    Hour("month", datetime(2026, 12, 1)),
    Hour("year", datetime(2027, 1, 1)),
    Hour("spring", datetime(2027, 3, 28, 2)),  # 02:00 becomes 03:00
    Hour("autumn", datetime(2027, 10, 31, 3)),  # 03:00 becomes 02:00; of the two, the one after the change
    Hour("leap", datetime(2028, 2, 29)),
)


def enter_own_mounts(library: Path) -> None:
    """Shift the clock of every program that this process starts from here on, and of no other."""
    libc = ctypes.CDLL(None, use_errno=True)
    folder = Path(tempfile.mkdtemp(dir=library.parent))
    folder.chmod(0o755)  # programs of other users read it too
    preload, offset = folder / "ld.so.preload", folder / "bireme-clock"
    preload.write_text(f"{library}\n")
    offset.write_bytes(struct.pack("d", 0.0))

    def check(done: int, what: str) -> None:
        if done != 0:
            raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")

    check(libc.unshare(CLONE_NEWNS), "unshare")
    check(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "make mounts private")
    for source, target in ((preload, PRELOAD), (offset, OFFSET)):
        check(libc.mount(bytes(source), bytes(target), None, MS_BIND, None), f"mount on {target}")


def shift(seconds: float) -> None:
    with OFFSET.open("r+b") as file:  # programs have it mapped: never a new file
        file.write(struct.pack("d", seconds))


def modules_below(paths: list[str]) -> list[str]:
    found: list[str] = []
    for path in paths:
        below = ROOT / path
        found += [str(below)] if below.is_file() else sorted(str(module) for module in below.rglob("test_*.py"))
    return found


def run(module: str, hour: Hour) -> bool:
    """Whether a module passes at that hour; called in mounts of our own."""
    shift(hour.begins - time.time())  # this process loaded nothing, and sees the real time
    environment = {**os.environ, "TZ": ZONE.key}
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", module]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    passed = done.returncode in (0, 5)
    last = (done.stdout.strip().splitlines() or ["no output"])[-1]
    print(f"{hour.name:14} {'ok    ' if passed else 'FAILED'} {os.path.relpath(module, ROOT)}: {last}", flush=True)
    if not passed:
        print(done.stdout[-6000:], done.stderr[-1000:], flush=True)
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clocks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="*", default=["tests/unit", "tests/scenarios", "tests/integration"])
    parser.add_argument("--hour", choices=[hour.name for hour in HOURS], action="append", help="only at this one")
    parser.add_argument("--beside", type=int, default=1, metavar="N", help="so many modules beside each other")
    asked = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("cc"):
        print("needs root and a C compiler", file=sys.stderr)
        return 2
    hours = [hour for hour in HOURS if not asked.hour or hour.name in asked.hour]
    if PRELOAD.exists() or OFFSET.exists():
        print(f"{PRELOAD} or {OFFSET} is there already: another run, or somebody's own", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder, ExitStack() as left:
        Path(folder).chmod(0o755)
        library = Path(folder) / "shifted_clock.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE)], check=True)
        for target in (PRELOAD, OFFSET):
            target.touch()  # a bind mount needs something to lie on; an empty file of either name changes nothing
            left.callback(target.unlink, missing_ok=True)
        asked_for = [(module, hour) for hour in hours for module in modules_below(asked.paths)]
        with ProcessPoolExecutor(asked.beside, initializer=enter_own_mounts, initargs=(library,)) as workers:
            outcomes = list(workers.map(run, *zip(*asked_for, strict=True)))
    print(f"{outcomes.count(True)} passed, {outcomes.count(False)} failed")
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
