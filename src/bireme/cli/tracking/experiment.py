"""bireme experiment: where a job's runs are in experiment trackers, and what they and its event files say.

The daemon says what it knows of MLflow and Weights & Biases; files are found and read here, as the user who asks.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from bireme.cli.connection import make_transport
from bireme.cli.parsing import Arguments
from bireme.cli.tracking.files import look, scalars_of, wandb_address, wandb_run, wandb_summary
from bireme.cli.tracking.tensorboard import Scalars
from bireme.client.transport import ApiError, BiremeUnavailable, Transport
from bireme.commands.voice import CommandFailure, refused_by_daemon, run_command
from bireme.slurm.formats.visible import visible

_FIELDS = "job_id,work_dir,start_time,end_time,std_out,std_err"
_MOST_LATEST = 40
"""So many metrics are listed; all are in --json."""


def main(argv: list[str]) -> int:
    return run_command("bireme experiment", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    parser = Arguments(
        prog="bireme experiment",
        description="Show a job's run in MLflow and Weights & Biases and its TensorBoard files: links, latest metrics.",
    )
    parser.add_argument("job", help="job id: 42, a task 42_3, a component 42+1")
    parser.add_argument("--metric", action="append", default=[], metavar="NAME", help="its whole curve too; repeatable")
    parser.add_argument("--logdir", metavar="DIR", help="look for its files here, not in its working folder")
    parser.add_argument("--json", action="store_true", help="all of it, for programs")
    given = parser.parse_args(argv)
    with make_transport() as transport:
        found = _asked(transport, given.job, given.metric)
        record = _record(transport, given.job)
    found |= in_files(record, found.get("wandb"), given.metric, given.logdir)
    if found["wandb"] is not None and _left_nothing(found["wandb"]):
        found["wandb"] = None
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        for line in described(found):
            print(line)
    return 0


def _asked(transport: Transport, job: str, metrics: Sequence[str]) -> dict[str, Any]:
    """What the daemon knows; of a cluster whose jobs are told of no tracker, nothing."""
    if any("," in metric for metric in metrics):
        raise CommandFailure("a metric's name with a comma cannot be asked for: --json has the latest of all")
    asked = {"metrics": ",".join(metrics)} if metrics else {}
    try:
        found: dict[str, Any] = transport.get(f"/v1/jobs/{job}/experiment", asked)
    except (BiremeUnavailable, ApiError) as error:
        if getattr(error, "status", 0) != 404 or getattr(error, "code", None) is not None:
            raise refused_by_daemon("", error) from error
        return {"job_id": job, "mlflow": None, "wandb": None}
    return found


def _record(transport: Transport, job: str) -> dict[str, Any]:
    try:
        return dict(transport.get(f"/v1/jobs/{job}", {"fields": _FIELDS})["jobs"][0])
    except BiremeUnavailable as error:
        raise refused_by_daemon("", error) from error
    except ApiError as error:
        if error.code != "ESLURM_INVALID_JOB_ID":
            raise refused_by_daemon("", error) from error
    past = transport.get("/v1/history", {"job": job, "fields": _FIELDS, "start": 0})["jobs"]
    if not past:
        raise CommandFailure(f"there is no job {job}; `sacct` lists those that were")
    return dict(past[-1])


def in_files(
    record: dict[str, Any], wandb: dict[str, Any] | None, metrics: Sequence[str], folder: str | None
) -> dict[str, Any]:
    """What the job's program left in files."""
    started, run_id = record.get("start_time"), wandb["run_id"] if wandb else ""
    where = folder or record.get("work_dir") or ""
    if not started or not where:
        return {"tensorboard": [], "whole": True}
    found = look(where, started, record.get("end_time") or time.time(), run_id)
    if wandb is not None:
        wandb["folders"] = [_wandb_folder(path, metrics) for path in found.wandb]
        logs = (record.get("std_out"), record.get("std_err"))
        printed = next((address for log in logs if log and (address := wandb_address(log, run_id))), "")
        wandb["link"] = printed or wandb["link"]
    return {"tensorboard": [_event_file(path, metrics) for path in found.event_files], "whole": found.whole}


def _left_nothing(run: dict[str, Any]) -> bool:
    """A run that the job may have had, and of which nothing is in its log and its files."""
    return bool(run.pop("supposed", False)) and not run["link"] and not run.get("folders")


def _wandb_folder(path: str, metrics: Sequence[str]) -> dict[str, Any]:
    """The summary is the client's own word on the run, where it wrote one; else that of its log."""
    try:
        run = wandb_run(path)
    except OSError as error:
        return {"path": path, "summary": wandb_summary(path), **_unread(error)}
    return {"path": path, "summary": wandb_summary(path) or run.summary, **_curves(run.history, metrics)}


def _event_file(path: str, metrics: Sequence[str]) -> dict[str, Any]:
    try:
        return {"path": path, **_curves(scalars_of(path), metrics)}
    except OSError as error:
        return {"path": path, **_unread(error)}


def _unread(error: OSError) -> dict[str, Any]:
    return {"metrics": [], "curves": [], "problem": f"cannot be read: {error.strerror}"}


def _curves(scalars: Scalars, metrics: Sequence[str]) -> dict[str, Any]:
    latest = [
        {"metric": tag, "value": _plain(curve[-1][2]), "at": _plain(curve[-1][0]), "step": curve[-1][1]}
        for tag, curve in sorted(scalars.curves.items())
    ]
    curves = [
        {
            "metric": tag,
            "points": [[_plain(at), step, _plain(value)] for at, step, value in curve],
            "whole": tag not in scalars.thinned,
        }
        for tag, curve in sorted(scalars.curves.items())
        if tag in metrics
    ]
    return {"metrics": latest, "curves": curves, "problem": scalars.broken}


def described(found: dict[str, Any]) -> Iterator[str]:
    """For people, a line each."""
    mlflow, wandb = found["mlflow"], found["wandb"]
    if mlflow is not None:
        yield from _of_mlflow(mlflow)
    if wandb is not None:
        yield from _of_wandb(wandb)
    for file in found.get("tensorboard", []):
        yield f"TensorBoard  {visible(file['path'])}"
        if file["problem"]:
            yield f"         {visible(file['problem'])}"
        yield from _figures(file)
    if found.get("tensorboard"):
        folder = os.path.commonpath([os.path.dirname(each["path"]) for each in found["tensorboard"]])
        yield f"         tensorboard --logdir {visible(folder)}"
    if not found.get("whole", True):
        yield "There may be more files than were looked at: name their folder with --logdir DIR."
    if mlflow is None and wandb is None and not found.get("tensorboard"):
        yield f"Job {found['job_id']} is told of no run: see the settings experiments.*, or it has not started yet."


def _of_mlflow(run: dict[str, Any]) -> Iterator[str]:
    if not run["run_id"]:
        why = run["missed"] or run.get("problem") or "none was made yet"
        yield f"MLflow   no run at {visible(run['server'])}: {visible(why)}"
        return
    yield f"MLflow   {visible(run['link'])}"
    yield f"         run {visible(run['run_id'])}{_named(run)}"
    if run.get("problem"):
        yield f"         what it says cannot be read: {visible(run['problem'])}"
    yield from _figures(run)


def _figures(run: dict[str, Any]) -> Iterator[str]:
    """The latest metrics of a run or a file, and the curves that were asked for."""
    latest = run.get("metrics", [])
    if latest:
        width = min(max(len(visible(each["metric"])) for each in latest[:_MOST_LATEST]), 50)
        yield "         latest metrics:"
        for each in latest[:_MOST_LATEST]:
            name = visible(each["metric"]).ljust(width)
            yield f"           {name}  {_number(each['value']):>12}  step {each['step']}, {_clock(each['at'])}"
    if len(latest) > _MOST_LATEST:
        yield f"           and {len(latest) - _MOST_LATEST} more (--json)"
    for curve in run.get("curves", []):
        yield f"         {visible(curve['metric'])}:"
        if not curve["points"]:
            yield "           nothing was logged"
        for at, step, value in curve["points"]:
            yield f"           {_clock(at)}  step {step:>8}  {_number(value)}"


def _named(run: dict[str, Any]) -> str:
    return f" ({visible(run['name'])}), {visible(run['status'])}" if run.get("status") else ""


def _of_wandb(run: dict[str, Any]) -> Iterator[str]:
    yield f"W&B      {visible(run['link'])}" if run["link"] else f"W&B      run {visible(run['run_id'])}"
    if run["link"]:
        yield f"         run {visible(run['run_id'])}"
    for folder in run.get("folders", ()):
        yield f"         {visible(folder['path'])}"
        if folder["problem"]:
            yield f"         {visible(folder['problem'])}"
        logged = {each["metric"] for each in folder["metrics"]}
        for name, value in sorted(folder["summary"].items())[:_MOST_LATEST]:
            if name not in logged:
                yield f"           {visible(name)}  {_number(value)}"
        yield from _figures(folder)


def _number(value: float | None) -> str:
    return "nan" if value is None else f"{value:.6g}"


def _plain(value: float) -> float | None:
    """JSON has no word for what is not a number."""
    return value if math.isfinite(value) else None


def _clock(at: float | None) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at is not None else "-"
    except (OverflowError, ValueError, OSError):  # a file may say anything
        return "-"
