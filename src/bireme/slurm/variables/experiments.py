"""Variables that lead a job's program to its run in MLflow and Weights & Biases, the same at every start of the job.

Called by the engine when it writes the environment of a script or a step (`with_experiment`), and by the daemon's
keeper of runs, which asks which jobs are to have one. Values in, variables out: nobody is asked here.

What the user set stays: nothing of ours takes the place of a variable that is there already. A variable that another
job was given, and that came along because this job was submitted from inside it, is not the user's own and is left
behind (`GIVEN` says which those are).
Invariant: everything but MLflow's run id, which is a fact of the journal, is a pure function of the job and the policy.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from bireme.core.model.jobs import Job
from bireme.core.model.resources import Allocation
from bireme.slurm.hostlist import compress

Variables = dict[str, str]

GIVEN = "BIREME_EXPERIMENT"
"""Names and values of what was given, so that it is known again in the environment of a job submitted from this one."""
URI, NAME, RUN, CONTEXT = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID", "MLFLOW_RUN_CONTEXT"
EXPERIMENT_ID = "MLFLOW_EXPERIMENT_ID"
WANDB_RUN = "WANDB_RUN_ID"
KEY_TAG = "bireme.run_key"
PLACES = ("cluster", "account", "user", "job", "partition")
"""What the name of an experiment may hold, in braces."""
_MOST_LETTERS = 200
_SAFE = re.compile(r"[^A-Za-z0-9_-]+")
_TOGETHER = ((EXPERIMENT_ID, NAME), (WANDB_RUN, "WANDB_RESUME"))
"""Where the user said the first, the second is not ours to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trackers:
    """Which experiment trackers jobs are told of, and which jobs are."""

    mlflow: str = ""
    """The tracking address; empty: no MLflow."""
    experiment: str = "{cluster}"
    mlflow_runs: bool = True
    """Runs are made for jobs, and their ids handed to them."""
    wandb: bool = False
    wandb_settings: Mapping[str, str] | None = None
    """WANDB_PROJECT and the like, by their names."""
    every_job: bool = False
    """Jobs without GPUs too."""
    partitions: tuple[str, ...] = ()
    """Only jobs in these; none: in all."""

    @property
    def any(self) -> bool:
        return bool(self.mlflow) or self.wandb

    def concern(self, job: Job, allocation: Allocation) -> bool:
        """Whether this job is told: replicas of services and others' pods are no experiments."""
        if not self.any or job.spec.replica is not None or job.is_pods or job.mirrored:
            return False
        if self.partitions and allocation.partition not in self.partitions:
            return False
        return self.every_job or any(share.gpus_seen() for share in allocation.shares)


def run_key(cluster: str, job_id: int, submitted_at: float) -> str:
    """The job's name among all runs: the same at every start, another for every job, array task and component."""
    known = f"{cluster}\0{job_id}\0{int(submitted_at)}".encode()
    readable = _SAFE.sub("-", cluster)[:30].strip("-") or "job"
    return f"{readable}-{job_id}-{hashlib.sha256(known).hexdigest()[:10]}"


def experiment_name(pattern: str, cluster: str, job: Job, partition: str) -> str:
    """The experiment's name, with what stands in braces filled in."""
    spec = job.spec
    values = (cluster, spec.account or "none", spec.owner.user, spec.name, partition)
    found = dict(zip(PLACES, values, strict=True))
    return re.sub(r"\{([a-z]+)\}", lambda match: found[match[1]][:_MOST_LETTERS], pattern)


def tags(cluster: str, job: Job, allocation: Allocation) -> Variables:
    """What a run is told of its job."""
    spec = job.spec
    found = {
        KEY_TAG: run_key(cluster, job.id, job.submitted_at),
        "bireme.cluster": cluster,
        "bireme.job_id": str(job.id),
        "bireme.job": job.label,
        "bireme.job_name": spec.name,
        "bireme.account": spec.account,
        "bireme.partition": allocation.partition,
        "bireme.nodes": compress(share.node for share in allocation.shares),
        "mlflow.user": spec.owner.user,
    }
    return {name: value[:_MOST_LETTERS] for name, value in found.items() if value}


def experiment_variables(trackers: Trackers, cluster: str, job: Job, allocation: Allocation) -> Variables:
    """All that a job may be given, before the user's own variables are looked at."""
    if not trackers.concern(job, allocation):
        return {}
    given: Variables = {}
    if trackers.mlflow:
        given |= {
            URI: trackers.mlflow,
            NAME: experiment_name(trackers.experiment, cluster, job, allocation.partition),
            CONTEXT: json.dumps(tags(cluster, job, allocation), separators=(",", ":")),
        }
        if job.tracked is not None and job.tracked.run_id and job.tracked.server == trackers.mlflow:
            given[RUN] = job.tracked.run_id
    if trackers.wandb:
        given |= {
            WANDB_RUN: run_key(cluster, job.id, job.submitted_at),
            "WANDB_RESUME": "allow",
            "WANDB_TAGS": f"bireme,job-{job.id},{_SAFE.sub('-', cluster)[:40]}",
            **(trackers.wandb_settings or {}),
        }
    return given


def own_variables(user: Mapping[str, str]) -> Variables:
    """An environment without what was given to the job that it was captured in."""
    marked = _marked(user.get(GIVEN, ""))
    return {
        name: value for name, value in user.items() if name != GIVEN and (name not in marked or marked[name] != value)
    }


def _marked(text: str) -> Mapping[str, object]:
    """What `GIVEN` says; a user may have written anything there."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def with_experiment(user: Mapping[str, str], given: Mapping[str, str]) -> Variables:
    """The user's environment and beside it what of `given` goes together with it."""
    own = own_variables(user) if GIVEN in user else dict(user)
    added = {name: value for name, value in given.items() if name not in own}
    for theirs, ours in _TOGETHER:
        if theirs in own:
            added.pop(ours, None)
    if not _same_server(own, given):
        for name in (NAME, RUN, CONTEXT):
            added.pop(name, None)
    if added:
        own |= added
        own[GIVEN] = json.dumps(added, separators=(",", ":"))
    return own


def takes_a_run(user: Mapping[str, str], given: Mapping[str, str]) -> bool:
    """Whether a run is to be made for a job with this environment: the user has no other run or server in mind."""
    own = own_variables(user)
    return URI in given and RUN not in own and _same_server(own, given)


def chosen_experiment(user: Mapping[str, str], given: Mapping[str, str]) -> tuple[str, str]:
    """(id, name) of the experiment that the job's run belongs to: one of them is empty. The user's own comes first."""
    own = own_variables(user)
    if EXPERIMENT_ID in own:
        return own[EXPERIMENT_ID], ""
    return "", own.get(NAME) or given[NAME]


def _same_server(own: Mapping[str, str], given: Mapping[str, str]) -> bool:
    return own.get(URI, given.get(URI, "")).rstrip("/") == given.get(URI, "").rstrip("/")
