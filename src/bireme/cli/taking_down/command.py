"""bireme down: ends the daemon, and with `--end-jobs` all of the cluster that is on this machine.

Without that option jobs and services go on, and what holds them with them: it is named, and ends with the last of them.
How the daemon is ended is `daemon/process`; which agents stay `agents`; what is left after all `remains`.
Invariant: what runs on when this command ends was said, with its pids and what ends it; the exit code is 0 only where
that is what was asked for.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterator
from typing import Any

from bireme.agent.confining.sweeping import remove_groups
from bireme.cli.lifecycle import cluster_parser, services_words
from bireme.cli.taking_down.agents import Leaving, end_agents, let_leave
from bireme.cli.taking_down.remains import end_remnants
from bireme.client.transport import Transport
from bireme.commands.voice import CommandFailure, run_command
from bireme.core.explain.wording import counted
from bireme.daemon import process
from bireme.daemon.paths import Paths
from bireme.daemon.router import process as router
from bireme.daemon.telemetry import process as gatherer
from bireme.slurm.hostlist import compress

_END_JOBS_S = 150.0
"""For a daemon that ends its jobs first, which takes KillWait and more."""
_NAMED_JOBS = 8


def down(argv: list[str]) -> int:
    return run_command("bireme down", lambda: _down(argv))


def _down(argv: list[str]) -> int:
    about = "Stop the cluster's daemon. Running jobs go on, with what holds them, and are found again by the next `up`."
    parser = cluster_parser("down", about)
    end_help = "end jobs, services' replicas, the router and the agents too; services come back with the next `up`"
    parser.add_argument("--end-jobs", action="store_true", help=end_help)
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing when all is well")
    given = parser.parse_args(argv)
    paths = Paths(given.home)
    told: dict[str, Any] = {}
    stopped = _end_daemon(paths, given.end_jobs, told)
    if pid := process.running_pid(paths.home):
        hint = "to end it: bireme down" + (" --end-jobs" if given.end_jobs else "")
        raise CommandFailure(f"somebody has started the cluster again meanwhile (pid {pid})", hint=hint)
    lines = _end_all(paths, told, stopped) if given.end_jobs else _let_go(paths, stopped)
    for line in lines:
        if not given.quiet:
            print(line)
    return 0


def _end_daemon(paths: Paths, end_jobs: bool, told: dict[str, Any]) -> bool:
    """Whether there was one. `told` is what it says to it."""

    def ask() -> int:
        with Transport(paths.home) as transport:
            told.update(transport.post("/v1/shutdown", {"end_jobs": end_jobs}))
        return int(told["pid"])

    def waits_for(what: str) -> None:
        print(f"bireme down: the daemon is still there: it waits for {what}", file=sys.stderr)

    timeout_s = _END_JOBS_S if end_jobs else process.STOP_TIMEOUT_S
    try:
        return process.stop(paths.home, ask=ask, timeout_s=timeout_s, waits_for=waits_for)
    except process.DaemonError as error:
        raise CommandFailure(str(error)) from error


def _is_down(paths: Paths, was_up: bool) -> str:
    return f"The cluster at {paths.home} is down." if was_up else f"No cluster runs at {paths.home}."


# --- jobs go on --------------------------------------------------------------------------------------------


def _let_go(paths: Paths, stopped: bool) -> Iterator[str]:
    leaving = let_leave(paths)
    yield _is_down(paths, stopped or bool(leaving.left))
    gathers = gatherer.pid_of(paths.gatherer)
    if gathers and not (leaving.holding or leaving.silent):
        gatherer.end(paths.gatherer)
    if leaving.holding:
        yield f"{_held(leaving)}. Found again by: bireme up; ended by: bireme down --end-jobs"
    if gathers and (leaving.holding or leaving.silent):
        yield f"What they do is gathered on (pid {gathers}), until two minutes after the last of them at most."
    if pid := router.pid_of(paths.router):
        yield f"Services go on, and their router (pid {pid}). To end their replicas: bireme down --end-jobs"
    if leaving.silent:
        raise CommandFailure(
            f"agents do not say what they hold, and did not leave: {_by_node(leaving.silent)}",
            hint="to end them, with all that they hold: bireme down --end-jobs",
        )


def _held(leaving: Leaving) -> str:
    """`2 jobs (4, 5) go on, and with them the agents of n[1-2] (pids 12, 14)`."""
    jobs = sorted({job for _, held in leaving.holding.values() for job in held})
    named = ", ".join(map(str, jobs[:_NAMED_JOBS])) + (", ..." if len(jobs) > _NAMED_JOBS else "")
    nodes = compress(sorted(node for node, _ in leaving.holding.values()))
    pids = ", ".join(map(str, sorted(leaving.holding)))
    goes = "go on, and with them" if len(jobs) > 1 else "goes on, and with it"
    return f"{counted(len(jobs), 'job')} ({named}) {goes} the agents of {nodes} (pids {pids})"


def _by_node(agents: dict[int, str]) -> str:
    return ", ".join(f"{node} (pid {pid})" for pid, node in sorted(agents.items(), key=lambda item: item[1]))


# --- jobs end too ------------------------------------------------------------------------------------------


def _end_all(paths: Paths, told: dict[str, Any], stopped: bool) -> Iterator[str]:
    """`told`: by the daemon that was asked, if one was."""
    ended: dict[int, str] = {}

    def end_the_rest() -> None:
        ended.update(end_agents(paths))
        if router.end(paths.router) and "services" not in told:
            told["services"] = None  # no daemon was there to name them
        gatherer.end(paths.gatherer)

    end_the_rest()
    left = end_remnants(paths, end_the_rest)
    yield from _what_ended(told, ended)
    if left:
        raise CommandFailure(
            f"not all of the cluster at {paths.home} could be ended: {'; '.join(map(str, left))}",
            hint="they were sent SIGKILL and end as soon as the kernel lets them; then again: bireme down --end-jobs",
        )
    _remove_left_groups(paths)
    yield _is_down(paths, stopped or bool(ended))


def _what_ended(told: dict[str, Any], left: dict[int, str]) -> Iterator[str]:
    """`left`: agents that the daemon did not end."""
    words = [counted(told["jobs"], "running job")] if told.get("jobs") else []
    if told.get("agents"):
        words.append(f"the agents of {compress(told['agents'])}")
    if words:
        yield f"Ended {' and '.join(words)}."
    if left:
        nodes, pids = compress(sorted(set(left.values()))), ", ".join(map(str, sorted(left)))
        yield f"Ended agents that no daemon heard, with the jobs that they held: {nodes} (pids {pids})."
    if (kept := told.get("services", [])) is None or kept:
        who = f"{services_words(kept)} {'comes' if len(kept) == 1 else 'come'}" if kept else "Its services come"
        yield f"{who} back with the next `bireme up`; then `bireme service stop NAME` ends one."


def _remove_left_groups(paths: Paths) -> None:
    """Removes the cgroups that killed agents left: no other agent comes to do it."""
    for folder in glob.glob(os.path.join(paths.agents, "*", "")):
        node = os.path.basename(os.path.dirname(folder))
        if not remove_groups(paths.home, node):
            raise CommandFailure(f"processes of node {node} do not end; see {folder}agent.log and: bireme doctor")
