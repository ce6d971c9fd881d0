"""bireme doctor: what this machine grants, what is wrong with the cluster, and what to do about it.

Every check tries the thing itself instead of guessing from versions, and says ok, warn (works, with less) or fail.
Exit code 0 unless a check failed. Works with and without a running daemon.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import bireme
from bireme.agent.boxes import probing
from bireme.agent.confining import confinement, namespaces, tracking
from bireme.agent.devices import gpus
from bireme.cli.lifecycle import agents_without_a_daemon, findings_words, healings_words, releases_words, rounds_words
from bireme.cli.main import SLURM_COMMANDS
from bireme.cli.parsing import Arguments
from bireme.client.transport import ApiError, BiremeUnavailable, Transport
from bireme.commands.voice import run_command
from bireme.daemon import process
from bireme.daemon.paths import Paths
from bireme.daemon.telemetry import process as gatherer
from bireme.router.census import living as living_routers
from bireme.slurm.formats.visible import visible

OK, WARN, FAIL = "ok", "warn", "fail"
_CONSTRAIN = {"memory": "ConstrainRAMSpace", "cpus": "ConstrainCores", "devices": "ConstrainDevices"}
_LOW_DISK_BYTES = 1 << 30
_NO_DISK_BYTES = 50 << 20
_FEW_FILES = 1024
_LONGEST_PLAIN_SOCKET = 107
_UNLIKELY_BEFORE = 1_700_000_000  # a clock before the end of 2023 was never set
_CLOCK_TOLERANCE_S = 2.0


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report. `advice` says what to do; empty when nothing is to be done."""

    name: str
    status: str
    why: str
    advice: str = ""


def main(argv: list[str]) -> int:
    return run_command("bireme doctor", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    parser = Arguments(prog="bireme doctor", description=__doc__.split("\n")[0].partition(": ")[2])
    parser.add_argument("--home", default=None, metavar="DIR", help="the cluster's state (default: $BIREME_HOME)")
    parser.add_argument("--json", action="store_true", help="for programs")
    given = parser.parse_args(argv)
    checks = list(examine(Paths(given.home)))
    if given.json:
        print(json.dumps([{"check": c.name, "status": c.status, "why": c.why, "advice": c.advice} for c in checks]))
    else:
        for check in checks:
            print(_line(check, colour=sys.stdout.isatty()), flush=True)
        print(f"\n{_summary(checks)}")
    return 1 if any(check.status == FAIL for check in checks) else 0


def examine(paths: Paths) -> Iterator[Check]:
    """Every check, in the order in which problems build on each other."""
    yield from _guarded("python", _python)
    yield from _guarded("home", lambda: _home(paths))
    yield from _guarded("users", lambda: _users(paths))
    yield from _guarded("disk", lambda: _disk(paths))
    yield from _guarded("clock", _clock)
    yield from _guarded("limits", _limits)
    yield from _guarded("loopback", _loopback)
    yield from _guarded("names", lambda: _capabilities(namespaces.probe(), "jobs still run, without node names"))
    yield from _guarded("containers", lambda: _capabilities(probing.probe(), "jobs with an image fail, and say why"))
    yield from _guarded("confinement", lambda: _confinement(paths))
    yield from _guarded("tracking", lambda: _tracking(paths))
    yield from _guarded("GPUs", _gpus)
    yield from _guarded("daemon", lambda: _daemon(paths))
    yield from _guarded("PATH", lambda: _path(paths))


def _guarded(name: str, check: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    """A check that breaks is a finding, not the end of the report."""
    try:
        yield from check()
    except Exception as error:
        yield Check(name, FAIL, f"could not be checked: {type(error).__name__}: {error}")


def _python() -> Iterator[Check]:
    version = platform.python_version()
    yield Check("python", OK, f"{version} at {sys.executable}, bireme {bireme.__version__}")


def _home(paths: Paths) -> Iterator[Check]:
    if not os.path.isdir(paths.home):
        yield Check("home", OK, f"{paths.home} is not there yet; `bireme up` makes it")
        return
    about = os.stat(paths.home)
    if about.st_uid != os.geteuid() and os.access(paths.socket, os.W_OK):
        yield Check("home", OK, f"{paths.home} belongs to uid {about.st_uid}, whose cluster is open to you")
    elif about.st_uid != os.geteuid():
        advice = "set BIREME_HOME to a folder of your own, or ask its owner for access"
        yield Check("home", WARN, f"{paths.home} belongs to uid {about.st_uid}", advice)
    elif about.st_mode & 0o066:
        yield Check("home", FAIL, f"others can read or write {paths.home}", f"chmod 700 {paths.home}")
    elif not os.access(paths.home, os.W_OK):
        yield Check("home", FAIL, f"{paths.home} cannot be written", f"chmod u+w {paths.home}")
    else:
        yield Check("home", OK, f"{paths.home} is private")
    if len(os.fsencode(paths.socket)) > _LONGEST_PLAIN_SOCKET:
        advice = "other programs may not reach it; a shorter BIREME_HOME helps"
        yield Check("home", WARN, "the path of the socket is longer than a socket address", advice)


def _users(paths: Paths) -> Iterator[Check]:
    """A cluster of root's is for everybody, if everybody can reach its socket and run its commands."""
    if os.geteuid() != 0:
        return
    needed = {
        "the cluster": (paths.home, "set BIREME_HOME to a folder below /var/lib or /srv"),
        "Bireme's Python": (sys.executable, "install Bireme where every user can run it, for example in /opt"),
    }
    closed = False
    for what, (path, advice) in needed.items():
        if folder := closed_to_others(path):
            closed = True
            yield Check("users", WARN, f"only root can reach {what}: {folder} is closed to others", advice)
    if not closed:
        yield Check("users", OK, "every user of this machine can submit jobs")


def closed_to_others(path: str) -> str | None:
    """The first folder on the way to a file (with its links followed) that users other than its owner cannot pass."""
    folder = os.path.realpath(path)
    closed = None
    while (parent := os.path.dirname(folder)) != folder:
        folder = parent
        if os.path.isdir(folder) and not os.stat(folder).st_mode & 0o001:
            closed = folder
    return closed


def _disk(paths: Paths) -> Iterator[Check]:
    place = paths.home
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    free = shutil.disk_usage(place).free
    words = f"{free / (1 << 30):.1f} GiB free at {place}"
    if free < _NO_DISK_BYTES:
        yield Check("disk", FAIL, words, "submissions will be refused: make room, or move BIREME_HOME")
    elif free < _LOW_DISK_BYTES:
        yield Check("disk", WARN, words, "make room before the journal cannot be written")
    else:
        yield Check("disk", OK, words)


def _clock() -> Iterator[Check]:
    now = time.time()
    if now < _UNLIKELY_BEFORE:
        yield Check("clock", FAIL, f"the machine's clock says {time.ctime(now)}", "set the clock: times would be wrong")
    else:
        yield Check("clock", OK, time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now)))


def _limits() -> Iterator[Check]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _FEW_FILES:
        advice = "raise it (ulimit -n, /etc/security/limits.conf): each running task needs a few"
        yield Check("limits", WARN, f"at most {hard} open files a process", advice)
    else:
        yield Check("limits", OK, f"{soft} open files a process")


def _loopback() -> Iterator[Check]:
    """Virtual nodes have addresses of their own in 127.0.0.0/8, and programs listen on them."""
    address = namespaces.loopback_address(0)
    try:
        with socket.socket() as probe:
            probe.bind((address, 0))
    except OSError as error:
        advice = "bring the loopback interface up: ip link set lo up"
        yield Check("loopback", FAIL, f"nothing can listen on {address}: {error.strerror}", advice)
        return
    yield Check("loopback", OK, f"programs can listen on virtual nodes' addresses ({address} ...)")


def _capabilities(found: list[Any], otherwise: str) -> Iterator[Check]:
    for capability in found:
        status = OK if capability.ok else WARN
        yield Check(capability.name, status, capability.why, "" if capability.ok else otherwise)


def _confinement(paths: Paths) -> Iterator[Check]:
    """What the cluster that runs holds jobs to, as its agents say; without one, what this user's would do here.

    Whoever asks may have less right than the cluster, or more: what this process could do says nothing about it.
    """
    ping = _ping(paths)
    asked, refused = ping.get("confined") or {}, ping.get("unconfined") or {}
    if not asked:
        yield from _capabilities(confinement.probe(), "jobs still run, limits are not enforced")
    for kind, wanted in asked.items():
        if not wanted:
            why = refused.get(kind, "not in force: this cluster's configuration does not ask for it")
            advice = f"{_CONSTRAIN[kind]}=yes in cgroup.conf beside slurm.conf holds jobs to it"
            yield Check(f"confine {kind}", WARN, why, advice)
        elif kind in refused:
            yield Check(f"confine {kind}", WARN, refused[kind], "jobs still run, limits are not enforced")
        else:
            yield Check(f"confine {kind}", OK, "in force: this cluster holds jobs to theirs")


def _ping(paths: Paths) -> dict[str, Any]:
    """What the daemon says of itself; empty when none runs."""
    try:
        with Transport(paths.home, timeout_s=10.0) as transport:
            said: dict[str, Any] = transport.get("/v1/ping")
    except (BiremeUnavailable, ApiError):
        return {}
    return said


def _tracking(paths: Paths) -> Iterator[Check]:
    """What the agents that run say of themselves; without any, what one would do here."""
    ping = _ping(paths)
    in_force = ping.get("about", "") if ping.get("engine", "").startswith("embedded") else ""
    if not in_force:
        yield from _capabilities(tracking.probe(), "")
    elif "ProctrackType=" in in_force:
        yield Check("tracking", WARN, in_force, "run the cluster as root, or take ProctrackType out of slurm.conf")
    else:
        yield Check("tracking", OK, in_force)


def _gpus() -> Iterator[Check]:
    inventory = gpus.discover()
    if not inventory.gpus:
        has_driver = os.path.exists("/proc/driver/nvidia") or os.path.exists("/dev/kfd")
        advice = "a driver is loaded but shows no GPU: run nvidia-smi (or rocm-smi) and mend what it says"
        yield Check("GPUs", WARN if has_driver else OK, inventory.reason or "none found", advice if has_driver else "")
        return
    for gpu in inventory.gpus:
        memory = getattr(gpu, "memory_mib", None)
        model = getattr(gpu, "model", None) or getattr(gpu, "name", "GPU")
        yield Check(f"GPU {getattr(gpu, 'index', '')}".strip(), OK, f"{model}" + (f", {memory} MiB" if memory else ""))


def _daemon(paths: Paths) -> Iterator[Check]:
    pid = process.running_pid(paths.home)
    try:
        with Transport(paths.home, timeout_s=10.0) as transport:
            about = transport.get("/v1/ping", {"agents": "ask"})
            nodes = transport.get("/v1/nodes")["nodes"]
    except (BiremeUnavailable, ApiError) as error:
        if pid is None:
            yield Check("daemon", WARN, f"no cluster runs at {paths.home}", "start it with: bireme up")
            yield from _left_routers(paths, 0)
            if left := agents_without_a_daemon(paths):
                yield Check("agents", WARN, left, "found again by: bireme up; ended by: bireme down --end-jobs")
        else:
            yield Check(
                "daemon", FAIL, f"pid {pid} does not answer: {error}", f"see {paths.log}, then: bireme down; bireme up"
            )
        return
    if about["version"] != bireme.__version__:
        advice = "restart it when convenient (jobs run on): bireme down; bireme up"
        yield Check("daemon", WARN, f"runs version {about['version']}, this is {bireme.__version__}", advice)
    else:
        yield Check("daemon", OK, f"cluster {about['cluster']}, pid {about['pid']}")
    if abs(about["now"] - time.time()) > _CLOCK_TOLERANCE_S:
        yield Check("clock", WARN, "the daemon's clock and this process's differ", "restart the daemon")
    if about.get("journal"):
        advice = f"make room on the disk of {paths.home}: nothing starts, ends or changes until then"
        yield Check("journal", FAIL, about["journal"], advice)
    for notice in about.get("notices") or ():
        yield Check("configuration", WARN, notice)
    for line in releases_words(about):
        what, _, advice = line.partition(": ")
        yield Check("release", WARN, what, advice)
    yield from _router(about.get("router") or {}, paths)
    yield from _telemetry(about.get("telemetry"), paths)
    yield from _findings(about.get("findings") or {})
    yield from _healings(about.get("healings") or {})
    yield from _nodes(nodes, about.get("silent_agents") or [], paths)


def _router(about: dict[str, Any], paths: Paths) -> Iterator[Check]:
    """What there is to know of the services' router; where there are no services there is no router, and nothing to
    say."""
    if problem := about.get("problem"):
        elsewhere = f"router.address in {paths.settings}, then: scontrol reconfigure"
        advice = f"see {paths.router_log}; to have it listen elsewhere: {elsewhere}"
        yield Check("router", FAIL, f"services cannot be reached: {problem}", advice)
    if warning := about.get("warning"):
        yield Check("router", WARN, warning, f"see {paths.router_log}; it is tried again all the time")
    elif about.get("url"):
        yield from _left_routers(paths, int(about["pid"]))
        yield Check("router", OK, f"services are reached at {about['url']}, pid {about['pid']}")


def _left_routers(paths: Paths, known: int) -> Iterator[Check]:
    """Routers of this home, by the process table, other than the one that the daemon speaks with."""
    others = [str(pid) for pid in living_routers(paths.router).supervisors if pid != known]
    if others:
        advice = "found again by: bireme up; ended by: bireme down --end-jobs"
        what = "another router of this home runs" if known else "the router of its services runs on"
        yield Check("router", WARN, f"{what} (pid {', '.join(others)})", advice)


def _telemetry(about: dict[str, Any] | None, paths: Paths) -> Iterator[Check]:
    """`about`: None of a daemon that does not say; empty: it is off."""
    if about is None:
        return
    pid = gatherer.pid_of(paths.gatherer)
    if not about:
        yield Check(
            "telemetry", OK, f"off: what jobs and GPUs do is not measured (telemetry.gather in {paths.settings})"
        )
        return
    if problem := about.get("problem"):
        advice = f"jobs do not mind; see {paths.gatherer_log} and {paths.log}"
        yield Check("telemetry", WARN, f"what is measured is not whole: {problem}", advice)
    if late := rounds_words(about, only_late=True):
        ended = (
            f"this machine's gatherer is pid {pid}; ended (kill -9), it is replaced" if pid else "see bireme node there"
        )
        yield Check("telemetry", WARN, f"nothing new is told, newest round {late}", ended)
    elif not about.get("problem"):
        ages = rounds_words(about)
        told = f"is measured: newest round {ages}" if ages else "is measured by nobody: no machine has told anything"
        yield Check("telemetry", OK, f"what jobs and GPUs do {told}" + (f", pid {pid}" if pid else ""))


def _findings(counted: dict[str, int]) -> Iterator[Check]:
    """Detectors say what; this only that there is something."""
    if words := findings_words(counted):
        status = FAIL if counted.get("broken") else WARN
        yield Check("findings", status, f"stand: {words}", "bireme findings")


def _healings(told: dict[str, int]) -> Iterator[Check]:
    """What is out of service, also by hand, and what waits for a person."""
    if words := healings_words(told):
        yield Check("healings", WARN, words, "bireme healings")


def _nodes(nodes: list[dict[str, Any]], unanswered: list[str], paths: Paths) -> Iterator[Check]:
    """`unanswered`: whose agents were asked just now, and said nothing; the daemon gives them a minute."""
    silent = [
        node["name"] for node in nodes if node["state"] in ("DOWN", "UNKNOWN") or "NOT_RESPONDING" in node["flags"]
    ]
    hung = [name for name in unanswered if name not in silent]
    drained = [node["name"] for node in nodes if "DRAIN" in node["flags"] and node["name"] not in silent]
    if silent:
        log = os.path.join(paths.agents, silent[0], "agent.log")
        advice = f"see {log}; bring it back with: scontrol update nodename={silent[0]} state=resume"
        yield Check(
            "agents", FAIL, f"{len(silent)} of {len(nodes)} nodes do not answer: {', '.join(silent[:8])}", advice
        )
    if hung:
        advice = "nothing starts or ends there: they hang or were stopped (kill -CONT), see agent.log of each"
        yield Check("agents", FAIL, f"agents that do not answer now: {', '.join(hung[:8])}", advice)
    if not silent and not hung:
        yield Check("agents", OK, f"all {len(nodes)} nodes answer")
    if drained:
        advice = f"bring them back with: scontrol update nodename={drained[0]} state=resume"
        yield Check("agents", WARN, f"drained: {', '.join(drained[:8])}", advice)


def _path(paths: Paths) -> Iterator[Check]:
    found = {name: shutil.which(name) for name in SLURM_COMMANDS}
    ours = [name for name, path in found.items() if path == os.path.join(paths.bin, name)]
    others = sorted({os.path.dirname(path) for path in found.values() if path and os.path.dirname(path) != paths.bin})
    if len(ours) == len(found):
        yield Check("PATH", OK, "sbatch, srun, squeue ... are this cluster's")
    elif others:
        yield Check("PATH", WARN, f"sbatch is another's ({others[0]})", 'eval "$(bireme env)" puts this cluster first')
    else:
        yield Check("PATH", OK, 'sbatch is not on PATH here; eval "$(bireme env)" puts it there')


def _line(check: Check, *, colour: bool) -> str:
    mark = check.status
    if colour:
        code = {OK: "32", WARN: "33", FAIL: "31"}[check.status]
        mark = f"\033[{code}m{check.status}\033[0m" + " " * (4 - len(check.status))
    line = f"{mark:<4}  {visible(check.name):<14} {visible(check.why)}"
    return line + (f"\n{'':21}-> {visible(check.advice)}" if check.advice else "")


def _summary(checks: list[Check]) -> str:
    failed = sum(check.status == FAIL for check in checks)
    warned = sum(check.status == WARN for check in checks)
    if failed:
        return f"{failed} to mend, {warned} to know about."
    return f"All is well, {warned} to know about." if warned else "All is well."
