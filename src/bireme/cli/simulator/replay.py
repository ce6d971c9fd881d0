"""bireme snapshot and bireme plan: a cluster's planning input saved as one file, and planned again without a cluster.

A file holds what was decided when it was saved. `bireme plan --check` compares, so that a file from a bug report
becomes a test by copying it; `--update` records the decisions of this version.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

from bireme.cli.connection import make_transport
from bireme.cli.parsing import Arguments
from bireme.commands.reports import make_stamp
from bireme.commands.submitting.caller import local_utc_offset
from bireme.commands.voice import CommandFailure, Voice, run_command
from bireme.core.explain.wording import sentence
from bireme.core.plan.decisions import Plan
from bireme.core.plan.planner import plan as make_plan
from bireme.core.plan.snapshot import Snapshot
from bireme.core.state.state import State
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.records.plans import plan_record
from bireme.slurm.times import parse_timestamp
from bireme.store.planning_input import NotASnapshotError, PlanningInput, decode_input, with_decided


def snapshot(argv: list[str]) -> int:
    return run_command("bireme snapshot", lambda: _snapshot(argv))


def plan(argv: list[str]) -> int:
    return run_command("bireme plan", lambda: _plan(argv))


# -- saving ------------------------------------------------------------------------------------------------------------


def _snapshot(argv: list[str]) -> int:
    parser = Arguments(
        prog="bireme snapshot",
        description="Save everything the planner plans with as one file, for `bireme plan` and for bug reports. "
        "Scripts, environments, arguments and paths are not in it; names are.",
    )
    parser.add_argument("file", help="where to write it; - is standard output")
    parser.add_argument(
        "--anonymise", "--anonymize", action="store_true", help="other names for users, groups, accounts and jobs"
    )
    given = parser.parse_args(argv)
    with make_transport() as transport:
        data = transport.get_bytes("/v1/snapshot", {"anonymise": 1} if given.anonymise else None)
    taken = _decoded(data, "the daemon's answer")
    data = with_decided(data, plan_record(_planned(taken, taken.now)))
    if given.file == "-":
        sys.stdout.buffer.write(data)
        return 0
    _write_privately(given.file, data)
    Voice("bireme snapshot").say(f"{given.file}: {_summary(taken.state)}")
    return 0


def _write_privately(path: str, data: bytes) -> None:
    """For the owner only, and never half a file."""
    try:
        handle, beside = tempfile.mkstemp(dir=os.path.dirname(path) or ".", prefix=".snapshot-")  # made with mode 0600
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(beside, path)
    except OSError as error:
        raise CommandFailure(f"cannot write {path}: {error.strerror}") from error


# -- planning again ----------------------------------------------------------------------------------------------------


def _plan(argv: list[str]) -> int:
    parser = Arguments(
        prog="bireme plan", description="Plan a snapshot again, without a cluster, and print what is decided and why."
    )
    parser.add_argument("file", help="made by `bireme snapshot`")
    parser.add_argument("--now", metavar="TIME", help="plan as of this time: seconds since the epoch, or as in --begin")
    parser.add_argument("--json", action="store_true", help="the decisions as JSON")
    parser.add_argument("--check", action="store_true", help="end with 1 if other decisions are recorded in the file")
    parser.add_argument("--update", action="store_true", help="record these decisions in the file")
    given = parser.parse_args(argv)
    data = _read(given.file)
    taken = _decoded(data, given.file)
    now = taken.now if given.now is None else _time(given.now, taken.now)
    passed = _planned(taken, now)
    decided = plan_record(passed)
    if given.json:
        print(json.dumps({"now": now, "version": taken.version, **decided}, indent=2))
    else:
        _tell(taken, passed, decided, now)
    if given.update:
        _write_privately(given.file, with_decided(data, decided))
        return 0
    return _compare(taken, decided) if given.check else 0


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise CommandFailure(f"cannot read {path}: {error.strerror}") from error


def _decoded(data: bytes, name: str) -> PlanningInput:
    try:
        return decode_input(data)
    except NotASnapshotError as error:
        raise CommandFailure(f"{name}: {error}") from error


def _time(text: str, now: float) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    # Late: dates are asked for seldom.

    try:
        return parse_timestamp(text, now, local_utc_offset)
    except SlurmSyntaxError as error:
        raise CommandFailure(f"--now={text}: not a time") from error


def _planned(taken: PlanningInput, now: float) -> Plan:
    return make_plan(Snapshot(taken.state, taken.state.config.settings.policy, now))


def _tell(taken: PlanningInput, passed: Plan, decided: dict[str, Any], now: float) -> None:
    state, stamp = taken.state, make_stamp("", now)
    print(f"{state.config.name} at {stamp(now)} (saved by Bireme {taken.version}): {_summary(state)}")
    for start in decided["starts"]:
        label = _label(state, start["job_id"], start.get("task_id"))
        gres = "".join(f" {name}={count}" for name, count in start["gres"].items())
        print(f"{label:<24} starts on {start['nodes']} in {start['partition']}: cpu={start['cpus']}{gres}")
    for preempted in decided["preempts"]:
        victims = ", ".join(str(victim) for victim in preempted["victims"])
        print(f"{_label(state, preempted['job_id']):<24} preempts {victims}")
    for job_id, verdict in sorted(passed.verdicts.items()):
        when = "" if verdict.expected_start is None else f", starts {stamp(verdict.expected_start)}"
        words = ",".join(reason.kind for reason in verdict.reasons)
        print(f"{_label(state, job_id):<24} waits ({words}){when}")
        for text in dict.fromkeys(sentence(reason) for reason in verdict.reasons):
            print(f"{'':<24}   {text}")


def _label(state: State, job_id: int, task_id: int | None = None) -> str:
    name = str(job_id) if task_id is None else f"{job_id}_{task_id}"
    return f"{name} {state.jobs[job_id].spec.name}"


def _summary(state: State) -> str:
    return f"{len(state.nodes)} nodes, {len(state.holding)} jobs running, {len(state.pending)} waiting"


def _compare(taken: PlanningInput, decided: dict[str, Any]) -> int:
    voice = Voice("bireme plan")
    if taken.decided is None:
        voice.say("no decisions are recorded in the file (--update records them)")
        return 0
    if taken.decided == decided:
        return 0
    for kind, now_decided in decided.items():
        before = {each["job_id"]: each for each in taken.decided.get(kind, ())}
        after = {each["job_id"]: each for each in now_decided}
        for job_id in sorted(before.keys() | after.keys()):
            if before.get(job_id) != after.get(job_id):
                voice.say(f"{kind}: job {job_id}: recorded {before.get(job_id)}, now {after.get(job_id)}")
    return 1
