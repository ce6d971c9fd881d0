"""bireme checkpoint: a job says that it has saved its work; `--show` tells what is known of a job's checkpoints.

Called by scripts and training loops inside jobs, and by people. When others must make way, the planner ends those first
that lose the least: what a job did since it last said this, since its newest checkpoint, or since it started. Nothing
is copied here, and no file is looked at: that is done by a process of the job's owner's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from bireme.cli.connection import make_transport
from bireme.cli.parsing import Arguments
from bireme.client.transport import BiremeError
from bireme.commands.voice import CommandFailure, refused_by_daemon, run_command
from bireme.slurm.times import format_elapsed

_FIELDS = "job_id,state,checkpoint,saved_time,unsaved_s,checkpoint_path,work_dir"


def main(argv: list[str]) -> int:
    return run_command("bireme checkpoint", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    parser = Arguments(
        prog="bireme checkpoint",
        description="Say that a job has saved its work. If it is preempted, only what it does from now on is lost.",
    )
    parser.add_argument("job", nargs="?", default=os.environ.get("SLURM_JOB_ID"), help="default: the job this runs in")
    parser.add_argument("--show", action="store_true", help="tell what is known of its checkpoints, and say nothing")
    given = parser.parse_args(argv)
    if not given.job:
        raise CommandFailure("this is not inside a job: name one (bireme checkpoint 42)")
    with make_transport() as transport:
        try:
            if given.show:
                told = transport.get(f"/v1/jobs/{given.job}", {"fields": _FIELDS})
                print("\n".join(_shown(told["jobs"])))
            else:
                transport.post(f"/v1/jobs/{given.job}/checkpoint")
        except BiremeError as error:
            raise refused_by_daemon(f"job {given.job}", error) from error
    return 0


def _shown(jobs: list[dict[str, Any]]) -> Iterator[str]:
    for job in jobs:
        found = job.get("checkpoint")
        if len(jobs) > 1:
            yield f"job {job['job_id']}"
        if found is None:
            where = job.get("checkpoint_path") or f"{job.get('work_dir')}, in layouts that are known"
            yield f"no whole checkpoint was found yet; looked for: {where}"
        else:
            yield f"{found['path']}"
            yield f"  layout {found['layout']}, step {'not known' if found['step'] is None else found['step']}"
            yield f"  written {_ago(found['saved_at'])} ago"
            yield from (f"  passed over: {each}" for each in found["passed_over"])
        if job.get("saved_time") is not None:
            yield f"  its work is saved until {_ago(job['saved_time'])} ago"
        if job.get("unsaved_s") is not None:
            yield f"  {format_elapsed(int(job['unsaved_s']))} would be lost" + (
                "" if job["state"] in ("RUNNING", "SUSPENDED") else ", or were"
            )


def _ago(at: float) -> str:
    return format_elapsed(max(0, int(time.time() - at)))
