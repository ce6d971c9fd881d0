"""What the tests on a real card share: the cards, a cluster that found them by itself, and a report at the end.

Without an NVIDIA GPU every test here skips with the reason that discovery gives. The report (what the machine is, what
each test saw) is printed after the tests, passed or not: a run on somebody else's machine has to explain itself.
"""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest
from tests.gpu.asking import Report
from tests.support.cluster import Cluster

from bireme.agent.confining.confinement import probe
from bireme.agent.devices.gpus import GpuInfo, discover

LOG_LINES = 25
TORCH_START_S = 150  # from a cold disk
REPORT = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session", autouse=True)
def cards() -> tuple[GpuInfo, ...]:
    """The NVIDIA GPUs of this machine; no test in this folder runs without one."""
    found = discover()
    nvidia = tuple(gpu for gpu in found.gpus if gpu.vendor == "nvidia")
    if not nvidia:
        pytest.skip(f"no NVIDIA GPU here ({found.reason or 'those found are of another make'})")
    return nvidia


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> Report:
    """`report(title, text)` adds to what is printed after the tests."""
    lines = pytestconfig.stash.setdefault(REPORT, [])

    def add(title: str, text: object) -> None:
        first, *others = str(text).rstrip().splitlines() or ["(nothing)"]
        lines.extend([f"{title}: {first}", *(f"    {line}" for line in others)])

    if not lines:
        for title, text in _machine():
            add(title, text)
    return add


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash.get(REPORT, [])
    if lines:
        terminalreporter.section("what the card and the cluster said")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture(scope="module")
def machine(report: Report) -> Iterator[Cluster]:
    """A cluster that nobody configured: one node, this machine, with the GPUs it found."""
    running = Cluster()
    try:
        report("bireme up", running.bireme("up").stdout)
        yield running
    finally:
        for log in sorted(running.home.rglob("*.log")):
            report(f"end of {log.name}", "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:]))
        left = running.stop()
    assert not left, f"left running after `bireme down --end-jobs`: {left}"


@pytest.fixture(scope="session")
def torch_python() -> str:
    """A Python that has torch and sees the GPU: BIREME_TEST_PYTHON, this one, or one on PATH."""
    named = os.environ.get("BIREME_TEST_PYTHON", "")
    on_path = [str(Path(folder) / "python3") for folder in os.environ.get("PATH", "").split(os.pathsep)]
    tried = dict.fromkeys([named] if named else [sys.executable, *filter(os.path.exists, on_path)])
    for python in tried:
        if _sees_the_gpu(python):
            return python
    pytest.skip(f"no torch that sees the GPU in {', '.join(tried)}; name a Python that has one in BIREME_TEST_PYTHON")


@lru_cache
def _sees_the_gpu(python: str) -> bool:
    asked = [python, "-c", "import torch; raise SystemExit(not torch.cuda.is_available())"]
    try:
        return subprocess.run(asked, capture_output=True, timeout=TORCH_START_S, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _machine() -> Iterator[tuple[str, str]]:
    yield "machine", f"{platform.release()}, {len(os.sched_getaffinity(0))} CPUs, uid {os.geteuid()}"
    yield "python", f"{platform.python_version()} at {sys.executable}"
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    yield "cgroups", ", ".join(f"{m[2]} at {m[1]}" for m in mounts if m[2].startswith("cgroup")) or "none mounted"
    yield "own name", f"{socket.gethostname()} {'resolves' if _resolves() else 'does not resolve'}"
    for capability in probe():
        yield capability.name, f"{'yes' if capability.ok else 'no'}, {capability.why}"


def _resolves() -> bool:
    try:
        return bool(socket.getaddrinfo(socket.gethostname(), None))
    except OSError:
        return False
