"""What a job's program logged, for its timeline: the address of its run in MLflow, and some of its metrics over time.

Asked for by `routes/timelines`, and only for who may read the run: its owner and operators. System metrics are left
out, since the daemon's own series have them.
Invariant: a server that does not answer costs who asks `LIMIT_S`, and is told as what is absent.
"""

from __future__ import annotations

import asyncio
from typing import Any

from bireme.core.model.jobs import Job
from bireme.core.telemetry.lanes import Logged
from bireme.ports import Experiments

MOST_METRICS = 6
LIMIT_S = 3.0
_SYSTEM = "system/"


async def logged_by(experiments: Experiments, job: Job | None, job_id: int, submitted_at: float) -> Logged | None:
    """`job`: None: it is only in the history. None where it has no run."""
    if job is not None and (job.tracked is None or not job.tracked.run_id):
        return None

    async def asked(metrics: tuple[str, ...]) -> dict[str, Any]:
        found = experiments.of_past(job_id, submitted_at, metrics) if job is None else experiments.of_job(job, metrics)
        return (await found)["mlflow"] or {}

    try:
        async with asyncio.timeout(LIMIT_S):
            run = await asked(())
            names = [each["metric"] for each in run.get("metrics", ()) if not each["metric"].startswith(_SYSTEM)]
            chosen = tuple(names[:MOST_METRICS])
            if chosen:
                run = await asked(chosen)
    except TimeoutError:
        run, names = {"problem": f"no answer within {LIMIT_S:g} s"}, []
    problem = run.get("problem") or ""
    if not run.get("run_id") and not problem:
        return None
    curves = {
        curve["metric"]: tuple((at, value) for at, _, value in curve["points"] if value is not None)
        for curve in run.get("curves", ())
    }
    absent = [f"Its run in MLflow cannot be read: {problem}."] if problem else []
    if len(names) > MOST_METRICS:
        absent.append(f"{len(names) - MOST_METRICS} more metrics of its run: bireme experiment {job_id}.")
    return Logged(run.get("link", ""), curves, tuple(absent))
