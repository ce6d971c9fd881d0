"""Sending a job to the daemon: one request for sbatch, salloc and srun, with what each says when it is refused.

Submitting twice must not make two jobs, so every submission has a key and may be sent again when the daemon went
away in the middle. Not here: reading options (`slurm/options`) or waiting for the job (`allocation`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bireme.commands.clusters import UnknownClusterError, chosen_clusters
from bireme.commands.paths import path_of
from bireme.commands.refused import ApiError, BiremeUnavailable
from bireme.commands.submitting.caller import plain_spec
from bireme.commands.surroundings import OWN_COMMAND, Port, around
from bireme.commands.voice import CommandFailure, Voice, refused_by_daemon
from bireme.slurm.hostlist import compress
from bireme.slurm.options.catalogue.help import depends_on_engine, engine_notices
from bireme.slurm.options.job import JobRequest
from bireme.slurm.options.layers import Options

if TYPE_CHECKING:  # sbatch starts sooner without
    from bireme.slurm.options.interactive import AllocationSubmission, RunSubmission

_TRIES_WHILE_FULL = 15
_AGAIN_S = 10.0
"""How long a daemon is waited for that ended while it had a submission."""
_TEMPORARILY_FULL = 11  # EAGAIN: Slurm's number for "temporarily unable to accept job"


def submission_body(
    requests: Sequence[JobRequest], script: str | None = None, clusters: Sequence[str] = ()
) -> dict[str, Any]:
    """The body of POST /v1/jobs: one job, or all components of a heterogeneous one."""
    parts = [_part(request, script) for request in requests]
    body: dict[str, Any] = parts[0] if len(parts) == 1 else {"het": parts}
    if clusters:
        body["clusters"] = list(clusters)
    body["idempotency_key"] = around().key
    return body


def interactive_body(transport: Port, asked: RunSubmission | AllocationSubmission) -> dict[str, Any]:
    """The request that srun or salloc submits with, to the clusters that it names; held by it, unless it goes (--no-
    shell)."""
    body = submission_body(asked.jobs, clusters=clusters_asked(transport, asked.options[0]))
    for part in body.get("het", [body]):
        part["spec"]["held_open"] = "no-shell" not in asked.options[0]
    return body


def _part(request: JobRequest, script: str | None) -> dict[str, Any]:
    part: dict[str, Any] = {"spec": plain_spec(request.spec), "environment": request.environment}
    if script is not None:
        part["script"] = script
    return part


def submit(transport: Port, body: dict[str, Any], what: str, voice: Voice) -> int:
    """The new job's id. `what` begins the sentence when the cluster refuses."""
    for attempt in range(1, _TRIES_WHILE_FULL + 1):
        try:
            answer = post_until_known(transport, "/v1/jobs", body, voice)
            for remark in answer.get("remarks", ()):
                voice.say(remark)
            return int(answer["job_id"])
        except BiremeUnavailable as error:
            raise refused_by_daemon(what, error) from error
        except ApiError as error:
            if error.code == OWN_COMMAND:
                around().become_slurms_own(transport)
            if error.slurm_errno != _TEMPORARILY_FULL or attempt == _TRIES_WHILE_FULL:
                raise refused_by_daemon(what, error) from error
            around().only_near()  # to wait
            if attempt == 1:
                voice.error(error.message)
            time.sleep(attempt)
    raise AssertionError("the loop returns or raises")


def post_until_known(transport: Port, path: str, body: dict[str, Any], voice: Voice) -> Any:
    """A submission whose answer got lost is sent again while patience lasts: the key makes it the same one."""
    if not transport.asked_before:
        try:
            return transport.post(path, body)
        except BiremeUnavailable as error:
            if not error.doubtful:
                raise
    what = path.rpartition("/")[2].removesuffix("s")
    voice.say(f"the daemon ended before it answered; the same {what} is sent again for {_AGAIN_S:g} s")
    transport.patience_s = max(transport.patience_s, _AGAIN_S)
    try:
        return transport.post(path, body)
    except BiremeUnavailable as error:
        raise BiremeUnavailable(error.socket_path, error.cause, doubtful=True) from error


def test_only(transport: Port, body: dict[str, Any], voice: Voice) -> int:
    """--test-only: when and where it would start, on standard error, as Slurm tells it."""
    try:
        answer = transport.post("/v1/jobs", body, {"test_only": 1})
    except BiremeUnavailable as error:
        raise refused_by_daemon("allocation failure", error) from error
    except ApiError as error:
        raise CommandFailure(f"allocation failure: {error.message}", bare=True) from error
    start = answer.get("start_time")
    when = "Unknown" if start is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(start))
    nodes = compress(answer.get("nodes") or []) or "(none free now)"
    voice.raw(
        f"{voice.command}: Job {answer.get('job_id', '?')} to start at {when} using {answer.get('cpus', 0)} processors"
        f" on nodes {nodes} in partition {answer.get('partition', '')}"
    )
    for why in answer.get("reasons") or ():  # Slurm looks at resources alone, and names a time that limits forbid
        voice.raw(f"{voice.command}: {why}")
    return 0


def tell_options(voice: Voice, options: Options) -> None:
    """-v: the options in force, by name, as Slurm lists them."""
    if not voice.verbose:
        return
    line = "-------------------- --------------------"
    voice.detail("defined options")
    voice.detail(line)
    for name in sorted(options.settings):
        setting = options.settings[name]
        shown = str(setting.times) if name == "verbose" else (setting.text if setting.text is not None else "set")
        voice.detail(f"{name:<20}: {shown}")
    voice.detail(line)
    voice.detail("end of defined options")


def tell_of_engine(voice: Voice, transport: Port, components: Sequence[Options], *, step: bool = False) -> None:
    """Says which of these options this cluster's engine does not apply, where engines differ."""
    if not depends_on_engine(components):
        return
    try:
        engine = str(transport.get("/v1/ping")["engine"])
    except (ApiError, BiremeUnavailable):
        return  # the submission itself says so
    for notice in engine_notices(components, engine, step=step):
        voice.say(notice)


def clusters_asked(transport: Port, options: Options) -> list[str]:
    """Clusters that -M names; empty when it is not given."""
    if "clusters" not in options:
        return []

    try:
        return chosen_clusters(transport, options.text("clusters"))
    except UnknownClusterError as error:
        raise CommandFailure(*str(error).splitlines()) from None


def cluster_of(transport: Port, job_id: int) -> str:
    return str(transport.get(path_of("jobs", job_id), {"fields": "cluster"})["jobs"][0]["cluster"])
