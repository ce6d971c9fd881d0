"""Jobs of a soak: what is drawn for each, and the script that writes down what it saw.

The script appends one line when it begins and one when it ends to `runs.log` (one write each: the kernel orders them),
and holds a lock for everything that it was given: GPUs, licences, its place in an array, its own name. Locks belong to
open files, which children inherit: whatever is left of a job holds them, wherever it hides. A lock that is
taken is a line, too. Invariant: `draw` of the same dice gives the same jobs.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

LOG = "runs.log"
LOCKS = "locks"
LICENCES = 2
RESERVED_NODE = "n4"
RESERVATION = "lab"
MEMBERS = "members"
"""The account that may use the reservation."""
NODES = ("n1", "n2", "n3", "n4")
SETTINGS = f"SlurmdTimeout=300\nMaxBatchRequeue=100\nLicenses=seat:{LICENCES}"

SCRIPT = """#!/bin/bash
# token seconds code hides [licence slots] [array slots]
export LC_ALL=C
token=$1 seconds=$2 code=$3 hides=$4 seats=$5 places=$6 gpus=${SLURM_JOB_GPUS:-}
about="$token $SLURM_JOB_ID ${SLURM_ARRAY_TASK_ID:--} ${SLURM_RESTART_COUNT:-0} $SLURMD_NODENAME"
exec 9>>runs.log
say() { printf '%s\\n' "$*" >&9; }
take() {  # the first of these that is free, or it is told that none is
  local name
  for name; do
    exec {lock}>>"locks/$name"
    flock -n "$lock" && return
    exec {lock}>&-
  done
  say "conflict $about $EPOCHREALTIME $*"
}
say "begin $about $EPOCHREALTIME ${gpus:--}"
take "job-$token-${SLURM_ARRAY_TASK_ID:-0}"
for gpu in ${gpus//,/ }; do take "gpu-$SLURMD_NODENAME-$gpu"; done
if [ "$seats" -gt 0 ]; then take seat-0 seat-1; fi
if [ "$places" -gt 0 ]; then take $(seq -f "array-$SLURM_ARRAY_JOB_ID-%g" "$places"); fi
if [ "$SLURM_JOB_NAME" = only-one ]; then take only-one; fi
case $hides in
  child) sleep 1000 & ;;
  deaf) (trap '' HUP INT TERM USR1; exec sleep 1000) & ;;
  session) setsid -f sleep 1000 ;;
  orphan) (setsid sleep 1000 &) ;;
  nameless) env -i setsid -f sleep 1000 ;;
  stopped) setsid -f bash -c 'kill -STOP $BASHPID; exec sleep 1000' ;;
esac
sleep "$seconds"
say "end $about $EPOCHREALTIME $code"
exit "$code"
"""

HIDING = ("child", "deaf", "session", "orphan", "nameless", "stopped")


@dataclass(slots=True)
class SoakJob:
    token: str
    options: dict[str, Any]
    seconds: str
    code: int
    hides: str = "no"
    seats: int = 0
    places: int = 0
    tasks: tuple[int, ...] = ()
    after: tuple[str, str] | None = None
    """(afterok, token)."""
    begin_at: float | None = None
    held: bool = False
    meddled: bool = False
    """Somebody cancels or requeues it."""
    job_id: str = ""
    """Empty: nobody knows whether it was accepted."""
    facts: dict[str, float] = field(default_factory=dict)

    def words(self) -> list[str]:
        return [self.token, self.seconds, str(self.code), self.hides, str(self.seats), str(self.places)]


def draw(dice: random.Random, token: str, earlier: list[SoakJob]) -> SoakJob:
    """Most are short and plain; a third has something that a rule is about."""
    job = SoakJob(token, {}, dice.choice(("0", "0", "0.1", "0.3", "0.8")), dice.choice((0, 0, 0, 1, 7)))
    if dice.random() < 0.3:
        job.hides = dice.choice(HIDING)
    kind = dice.choice(
        ("plain", "plain", "gpu", "gpu", "gang", "seat", "array", "after", "held", "later", "lab", "one")
    )
    if kind == "gpu":
        job.options["gpus"] = dice.randint(1, 2)
    elif kind == "gang":
        job.options |= {"nodes": dice.randint(2, 3), "gpus_per_node": 1}
    elif kind == "seat":
        job.seats = 1
        job.options["licenses"] = "seat:1"
    elif kind == "array":
        job.tasks = tuple(range(dice.randint(2, 4)))
        job.places = dice.randint(1, 2)
        job.options["array"] = f"0-{job.tasks[-1]}%{job.places}"
    elif kind == "after" and (targets := [each for each in earlier if _may_be_waited_for(each)]):
        target = dice.choice(targets)
        job.after = (dice.choice(("afterok", "afternotok", "afterany")), target.token)
        job.options |= {"dependency": f"{job.after[0]}:{target.job_id}", "kill_on_invalid_dep": "yes"}
    elif kind == "held":
        job.held, job.options["hold"] = True, True
    elif kind == "later":
        job.options["begin"] = "now+2"
    elif kind == "lab":
        job.options |= {"reservation": RESERVATION, "account": MEMBERS}
    elif kind == "one":
        job.options |= {"job_name": "only-one", "dependency": "singleton"}
    return job


def _may_be_waited_for(job: SoakJob) -> bool:
    return bool(job.job_id) and not job.tasks and not job.meddled
