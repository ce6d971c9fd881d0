"""scontrol's verbs: hold, release, requeue, suspend, resume, write, ping, reconfigure, shutdown, wait_job.

Each names its jobs (ids with commas or blanks, or `jobname=NAME`), asks the API once for all of them, and tells every
refusal as Slurm words it (`Invalid job id specified for job 9999`); the exit code says whether all went.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from bireme.commands import reports
from bireme.commands.paths import path_of
from bireme.commands.refused import ApiError, BiremeUnavailable
from bireme.commands.scontrol.session import Session
from bireme.commands.surroundings import around
from bireme.slurm.formats.identity import split_ids
from bireme.slurm.formats.job_values import FINISHED
from bireme.slurm.json_shapes.envelope import dump, envelope

_WAIT_ROUND_S = 60
_INCOMPLETE = frozenset({"CONFIGURING", "RUNNING", "STOPPED", "SUSPENDED"})
Verb = Callable[[Session, list[str]], int]


def hold(session: Session, words: list[str]) -> int:
    return _each(session, "hold", words, "hold", {}, _OF_HOLDS)


def uhold(session: Session, words: list[str]) -> int:
    return _each(session, "uhold", words, "hold", {"by": "user"}, _OF_HOLDS)


def release(session: Session, words: list[str]) -> int:
    return _each(session, "release", words, "release", {}, _OF_HOLDS)


def requeue(session: Session, words: list[str]) -> int:
    return _requeue(session, "requeue", words, {"hold": False})


def requeue_hold(session: Session, words: list[str]) -> int:
    return _requeue(session, "requeuehold", words, {"hold": True})


def _requeue(session: Session, verb: str, words: list[str], body: dict[str, Any]) -> int:
    """The options before the ids: `Incomplete`, `State=SpecialExit`."""
    options = [word.lower() for word in words if word.lower() in ("incomplete", "state=specialexit")]
    words = [word for word in words if word.lower() not in options]
    if "incomplete" in options:
        words = [job for job in job_ids(session, words) if _is_incomplete(session, job)]
        if not words:
            return 0
    if reports.environment().get("SLURM_JOB_ID") in words:
        # A job that requeues itself ends all of its processes: this one must live to say that it was done.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return _each(session, verb, words, "requeue", body)


def _is_incomplete(session: Session, job: str) -> bool:
    answer = session.get(path_of("jobs", job), "slurm_load_jobs error", {"fields": "job_id,state"})
    return any(each["state"] in _INCOMPLETE for each in answer["jobs"])


def suspend(session: Session, words: list[str]) -> int:
    return _each(session, "suspend", words, "suspend", {})


def resume(session: Session, words: list[str]) -> int:
    return _each(session, "resume", words, "resume", {})


def top(session: Session, words: list[str]) -> int:
    """Each word is a list of jobs, the one that is to go first first."""
    _needed("top", words)
    code = 0
    for word in words:
        try:
            session.post("/v1/top", {"jobs": job_ids(session, [word])})
        except ApiError as error:
            reports.tell(f"{error.message} for job {word}")
            code = 1
    return code


def _needed(verb: str, words: list[str]) -> None:
    if not words:
        raise reports.CommandError(f"too few arguments for keyword:{verb}")


def job_ids(session: Session, words: list[str]) -> list[str]:
    """Ids as typed; `jobname=NAME` stands for every job of that name."""
    ids: list[str] = []
    for word in words:
        key, equals, name = word.partition("=")
        if equals and key.lower() in ("jobname", "name"):
            answer = session.get("/v1/jobs", "slurm_load_jobs error", {"name": name, "fields": "job_id,name,state"})
            ids += [str(job["job_id"]) for job in answer["jobs"]]
        elif equals and key.lower() in ("job", "jobid"):
            ids += split_ids(name)
        else:
            ids += split_ids(word)
    return ids


_OF_HOLDS = "slurm_suspend error"
"""What Slurm says once more after the jobs that it could not hold or release."""


def _each(session: Session, verb: str, words: list[str], route: str, body: dict[str, Any], closing: str = "") -> int:
    """Asks it of every job, whoever is refused. `closing`: repeats the last refusal in these words."""
    _needed(verb, words)
    refused = ask_all(session, job_ids(session, words), route, body)
    for job, message in refused:
        reports.tell(f"{message} for job {job}")
    if refused and closing:
        reports.tell(f"{closing}: {refused[-1][1]}")
    return int(bool(refused))


def ask_all(session: Session, jobs: list[str], verb: str, body: dict[str, Any]) -> list[tuple[str, str]]:
    """Who was refused, and in which words. A job by itself has a route of its own, open to it from inside too."""
    if not jobs:
        return []
    try:
        if len(jobs) == 1 and "[" not in jobs[0]:
            session.post(path_of("jobs", jobs[0], verb), body)
            return []
        answer = session.post("/v1/orders", {**body, "verb": verb, "jobs": jobs})
    except ApiError as error:
        return [(job, error.message) for job in jobs]
    return [(refused["job"], refused["error"]["message"]) for refused in answer["errors"]]


def write(session: Session, words: list[str]) -> int:
    """`write batch_script JOB [FILE|-]`, `write config [FILE]`."""
    _needed("write", words)
    what, rest = words[0].lower(), words[1:]
    if "batch_script".startswith(what) and len(what) > 1:
        return _write_script(session, rest)
    if "config".startswith(what):
        return _write_config(session, rest)
    raise reports.CommandError(f"invalid write argument:{words[0]}")


def _write_script(session: Session, words: list[str]) -> int:
    if not words:
        raise reports.CommandError("too few arguments for keyword:write")
    try:
        script = session.transport.get_bytes(path_of("jobs", words[0], "script"))
    except (ApiError, BiremeUnavailable) as error:
        raise reports.failure("scontrol", "job script retrieval failed", error) from None
    name = words[1] if len(words) > 1 else f"slurm-{words[0]}.sh"
    if name == "-":
        around().write_bytes(script)
        return 0
    try:
        # The script may hold secrets of its owner: nobody else reads the copy.
        with open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o700), "wb") as file:
            file.write(script)
    except OSError as error:
        raise reports.CommandError(f"failed to open file `{name}`: {error.strerror}") from None
    session.say(f"batch script for job {words[0]} written to {name}")
    return 0


def _write_config(session: Session, words: list[str]) -> int:
    """slurm.conf's keys as written, under a name with the time in it."""
    answer = session.get("/v1/config", "slurm_load_ctl_conf error")
    base = words[0] if words else answer.get("source") or "slurm.conf"
    name = f"{base}.{time.strftime('%Y-%m-%dT%H:%M:%S')}"
    try:
        with open(name, "w", encoding="utf-8") as file:
            file.writelines(f"{key}={value}\n" for key, value in answer["raw"].items())
    except OSError as error:
        raise reports.CommandError(f"failed to open file `{name}`: {error.strerror}") from None
    session.say(f"Slurm config saved to {name}")
    return 0


def wait_job(session: Session, words: list[str]) -> int:
    """Waits until a job has its nodes, or is over."""
    _needed("wait_job", words)
    while True:
        params = {"until": "started", "timeout": _WAIT_ROUND_S}
        answer = session.get(path_of("jobs", words[0], "wait"), "slurm_job_node_ready error", params)
        if answer.get("done"):
            break

    if all(job["state"] in FINISHED for job in answer["jobs"]):
        raise reports.CommandError(f"scontrol: Job {words[0]} is no longer running")
    reports.tell(f"scontrol: Nodes are ready for job {words[0]}")
    return 0


def ping(session: Session, words: list[str]) -> int:
    host = around().host
    try:
        answer = session.transport.get("/v1/ping")
    except (ApiError, BiremeUnavailable) as error:
        reports.say(f"Slurmctld(primary) at {host} is DOWN")
        reports.tell(f"scontrol: {getattr(error, 'hint', error)}")
        return 1
    if session.wants_data:
        pings = [{"hostname": host, "pinged": "UP", "responding": True, "mode": "primary", "primary": True}]
        reports.write(dump(envelope("scontrol", {"pings": pings}), yaml=session.has("yaml")))
        return 0
    reports.say(f"Slurmctld(primary) at {host} is UP")
    if session.has("verbose"):
        reports.say(f"cluster {answer.get('cluster')}, engine {answer.get('engine')}, process {answer.get('pid')}")
    return 0


def reconfigure(session: Session, words: list[str]) -> int:
    answer = _operate(session, "/v1/reconfigure", {}, "slurm_reconfigure error")
    for notice in answer.get("notices") or ():
        reports.tell(f"scontrol: not applied: {notice}")
    return 0


def shutdown(session: Session, words: list[str]) -> int:
    """Ends the daemon; jobs run on, as they do when Slurm's daemons end."""
    if words and words[0].lower() not in ("slurmctld", "controller"):
        raise reports.CommandError(f"invalid shutdown argument: {words[0]}")
    _operate(session, "/v1/shutdown", {"end_jobs": False}, "slurm_shutdown error")
    return 0


def _operate(session: Session, path: str, body: dict[str, Any], what: str) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = session.post(path, body)
    except ApiError as error:
        raise reports.failure("scontrol", what, error) from None
    return answer


def unsupported(verb: str, instead: str) -> Verb:
    """A verb of Slurm that makes no sense here, or not yet; says what to do instead."""

    def refuse(session: Session, words: list[str]) -> int:
        raise reports.CommandError(f"scontrol: error: {verb} is not supported here: {instead}")

    return refuse
