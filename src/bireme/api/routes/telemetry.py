"""What is measured: the metrics, how everything stands now, and curves of jobs, nodes and GPUs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from bireme.api import measured
from bireme.api.looking_back import known
from bireme.api.measured import Span
from bireme.api.problems import ProblemError, answer
from bireme.api.routing import Context, Routes, is_id, number, words
from bireme.api.targets import one_target
from bireme.core.jobs import requests
from bireme.core.model.refusals import Refusal, Why
from bireme.core.telemetry.curves import Curve
from bireme.core.telemetry.exported import sums_by_job
from bireme.core.telemetry.metrics import BY_NAME, METRICS
from bireme.core.telemetry.subjects import Subject
from bireme.exposition import MEDIA
from bireme.ports import Series, SeriesError, Telemetry

routes = Routes("telemetry")

_DEFAULT: dict[str, tuple[str, ...]] = {
    "job": (
        "gpu_util", "gpu_sm_active", "gpu_tensor_active", "gpu_memory_used", "gpu_energy", "use_gpu_memory",
        "use_gpu_util", "cpu_user", "cpu_system", "memory", "io_read", "io_written",
    ),
    "gpu": ("gpu_util", "gpu_sm_active", "gpu_tensor_active", "gpu_memory_used", "gpu_energy", "gpu_temperature"),
    "node": ("node_cpu", "node_memory_used", "node_network_received", "node_network_sent", "node_load"),
}  # fmt: skip
_OF_GPU = ("node", "uuid", "index", "model", "memory_mib", "parent", "profile")
_REDUCTIONS = ("band", "mean", "low", "high")
_LATEST = 1e11
"""No time is later than that."""
_LAST_S = 3600.0
"""What is asked for where no start is given: of a node or a GPU."""
_SUMMED = ("cpu_user", "cpu_system", "memory", "io_read", "io_written", "use_gpu_memory")
"""Of tasks: added up to their job's."""


@routes.get("/v1/telemetry/metrics")
async def list_metrics(api: Context, request: Request) -> Response:
    """Every metric: what it is about, its unit, its source and its name in Prometheus."""
    shown = ("name", "about", "unit", "meaning", "source", "kind", "prometheus")
    return answer({"metrics": [{name: getattr(metric, name) for name in shown} for metric in METRICS]})


@routes.get("/v1/telemetry/now")
async def how_it_stands(api: Context, request: Request) -> Response:
    """The newest figures: of each GPU with the jobs that have it, of each node, and of each job the sum of its tasks.

    What was not measured is not there. `problem` says why nothing is measured or kept.
    """
    telemetry = _telemetry(api)
    caller = api.caller(request)
    series = telemetry.series
    if series is None:
        return answer({"at": api.now(), "gpus": [], "nodes": [], "jobs": {}, "problem": telemetry.problem})
    latest = await api.in_thread(request, lambda: {about: series.latest(about) for about in ("gpu", "node", "task")})
    visible = not api.viewer(caller).hidden("nodes")
    values = {(subject.node, subject.id): (at, figures) for subject, at, figures in latest["gpu"]}
    gpus = [
        {
            **{name: getattr(gpu, name) for name in _OF_GPU},
            "job_ids": [job_id for job_id in gpu.job_ids if _sees(api, request, job_id)],
            "unowned": not gpu.job_ids,
            "at": values[gpu.node, gpu.uuid][0] if (gpu.node, gpu.uuid) in values else None,
            "values": dict(values[gpu.node, gpu.uuid][1]) if (gpu.node, gpu.uuid) in values else {},
        }
        for gpu in (await telemetry.gpus() if visible else ())
    ]
    nodes = [
        {"node": subject.node, "at": at, "values": dict(figures)} for subject, at, figures in latest["node"] if visible
    ]
    jobs = {
        str(job_id): {"values": figures}
        for job_id, figures in sums_by_job(latest["task"], _SUMMED).items()
        if _sees(api, request, job_id)
    }
    return answer({"at": api.now(), "gpus": gpus, "nodes": nodes, "jobs": jobs, "problem": telemetry.problem})


@routes.get("/metrics", media="text/plain")
async def metrics_page(api: Context, request: Request) -> Response:
    """The page for Prometheus: queue, scheduler, nodes, services and GPUs, as far as the caller may know of them."""
    page = await api.exporter.page(api.caller(request))
    return Response(await api.in_thread(request, page.encode), media_type=MEDIA)


@routes.get(
    "/v1/telemetry/series",
    job="Curves of this job: of its GPUs while it had them, and of its tasks.",
    generation="Only of this start of the job.",
    gpu="Curves of this GPU, by its UUID; of each node that has one of that name, or with `node` of that one.",
    node="Curves of this node.",
    metrics="Which: names, with commas. Without: the usual ones.",
    start="From when (seconds since the epoch). Without: the job's start; of a GPU or a node an hour ago.",
    end="Until when. Without: the job's end, or now.",
    step="Seconds of each step.",
    points="So many steps, where no `step` is given (default 1000).",
    reduce="band (default): low, mean and high of each step; or one of these.",
)
async def read_series(api: Context, request: Request) -> Response:
    """Curves, null where nothing was measured."""
    series = _series(api)
    asked = [name for name in ("job", "gpu", "node") if request.query_params.get(name)]
    if len(asked) != 1 and asked != ["gpu", "node"]:
        raise ProblemError(400, "one of job, gpu and node says of what; gpu and node together of which GPU")
    of = asked[0]
    metrics = words(request, "metrics") or _DEFAULT[of]
    reduce = request.query_params.get("reduce") or "band"
    _check(metrics, reduce)
    if of == "job":
        curves, span = await _of_job(api, request, series, metrics)
    else:
        curves, span = await _of_hardware(api, request, series, of, metrics)
    rows = await api.in_thread(request, lambda: measured.described(curves, reduce))
    return answer({"start": span.start, "end": span.end, "step_s": span.step_s, "curves": rows})


def _check(metrics: tuple[str, ...], reduce: str) -> None:
    unknown = [name for name in metrics if name not in BY_NAME]
    if unknown:
        raise ProblemError(400, f"there is no metric {unknown[0][:80]!r}: GET /v1/telemetry/metrics lists them")
    if reduce not in _REDUCTIONS:
        raise ProblemError(400, f"reduce={reduce[:80]!r}: it is one of {', '.join(_REDUCTIONS)}")


async def _of_job(api: Context, request: Request, series: Series, metrics: tuple[str, ...]) -> tuple[list[Curve], Span]:
    job_id, began, ended = await _life(api, request, request.query_params["job"])
    text = request.query_params.get("generation", "")
    if text and not is_id(text):
        raise ProblemError(400, "generation: a whole number")
    generation = int(text) if text else None
    span = _span(request, began, ended if ended is not None else api.now())
    return await _read(api, request, partial(measured.curves_of_job, series, job_id, generation, metrics, span)), span


async def _of_hardware(
    api: Context, request: Request, series: Series, of: str, metrics: tuple[str, ...]
) -> tuple[list[Curve], Span]:
    if api.viewer(api.caller(request)).hidden("nodes"):
        raise Refusal(Why.ACCESS_DENIED)
    name, now = request.query_params[of], api.now()
    span = _span(request, now - _LAST_S, now)
    if of == "gpu":
        subjects = [Subject("gpu", node, name) for node in await _nodes_of(api, request, series, name)]
    else:
        subjects = [Subject("node", name, name)]
    return await _read(api, request, partial(measured.curves_of_hardware, series, subjects, metrics, span)), span


async def _nodes_of(api: Context, request: Request, series: Series, uuid: str) -> list[str]:
    """Virtual nodes of one machine may all have the same GPU. One that is gone is known by who had it."""
    if node := request.query_params.get("node"):
        return [node]
    found = {gpu.node for gpu in await _telemetry(api).gpus() if gpu.uuid == uuid}
    if not found:
        found = {held.node for held in await api.in_thread(request, lambda: series.holdings(uuid=uuid))}
    return sorted(found)


async def _read(api: Context, request: Request, work: Callable[[], list[Curve]]) -> list[Curve]:
    try:
        return await api.in_thread(request, work)
    except SeriesError as error:
        raise ProblemError(503, f"what was measured cannot be read: {error}") from error


def _span(request: Request, start: float, end: float) -> Span:
    start, end = (
        min(max(number(request, name, default), 0.0), _LATEST) for name, default in (("start", start), ("end", end))
    )
    if end < start:
        raise ProblemError(400, "end is before start")
    return Span.of(start, end, max(0.0, number(request, "step", 0.0)), number(request, "points", 1000.0))


async def _life(api: Context, request: Request, text: str) -> tuple[int, float, float | None]:
    """The id of a job that the caller may see, when it first had resources (or was submitted), and its end."""
    caller, target = api.caller(request), one_target(text)
    try:
        jobs = requests.find(api.cluster.state, target)
    except Refusal:
        jobs = []
    for job in jobs:
        if api.sees(caller, job.spec.owner.uid, job.spec.account):
            ended = getattr(job.phase, "ended_at", None)
            return job.id, job.submitted_at, ended
    for record in await known.over(api, request, target):
        return record["job_id"], record["submit_time"], record.get("end_time")
    raise Refusal(Why.INVALID_JOB_ID)


def _sees(api: Context, request: Request, job_id: int) -> bool:
    job = api.cluster.state.jobs.get(job_id)
    return job is not None and api.sees(api.caller(request), job.spec.owner.uid, job.spec.account)


def _telemetry(api: Context) -> Telemetry:
    telemetry = api.service.telemetry()
    if telemetry is None:
        raise ProblemError(404, measured.NOT_MEASURED)
    return telemetry


def _series(api: Context) -> Series:
    telemetry = _telemetry(api)
    if telemetry.series is None:
        why = telemetry.problem or "the store of what was measured is being opened"
        raise ProblemError(503, why)
    return telemetry.series
