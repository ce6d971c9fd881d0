"""What is asked of jobs that exist: one verb with its words, read from a request; and the routes that ask it of many.

Many jobs are one request, one commit and one look of the planner: `scancel -u`, `scontrol hold 1_[0-49999]`. Each is
decided by the same pure function of `core/jobs/requests.py` as it would be by itself (`jobs.py`), after those
before it, and a refusal keeps none of the others back. Invariant: ranges of tasks are looked up among those that exist,
and no more than `MOST_TARGETS` jobs and tasks are decided one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bireme.api import listing
from bireme.api.passing import passed_on, written
from bireme.api.privacy import Viewer
from bireme.api.problems import ProblemError, answer, refusal_content
from bireme.api.routing import Context, Routes
from bireme.api.targets import MOST_TARGETS, named_target
from bireme.core.faults.healings import requests as healings
from bireme.core.jobs import requests
from bireme.core.jobs.requests import Target
from bireme.core.model.events import Event
from bireme.core.model.jobs import ArraySpec, ArrayWaiting, Finished, Job, JobSpec, Pending, ResourceRequest
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.state.state import State
from bireme.ports import Order
from bireme.slurm.changes import CHANGEABLE, check_changes
from bireme.slurm.errors import SlurmSyntaxError
from bireme.store import codec

routes = Routes("jobs")
Change = Callable[[State, Caller, Target], list[Event]]
Decide = Callable[[State, float], list[Event]]
MOST_NAMED = 100_000
"""Ids in one request; a range counts as one."""
MOST_RANGED = 100
"""Ids with ranges in one request: for each of them all of its array is looked at."""


# -- one order, read from a body -------------------------------------------------------------------------------------


def read_order(verb: str, body: dict[str, Any], now: float) -> tuple[Change, Order]:
    """What a verb with these words does to a job here, and the order that says so to another scheduler."""
    match verb:
        case "cancel":
            return _cancelling(body)
        case "hold":
            as_user = body.get("by") == "user"
            order = Order(verb="hold", target="", as_user=as_user)
            return (lambda state, caller, target: requests.hold(state, caller, target, as_user)), order
        case "release":
            return requests.release, Order(verb="release", target="")
        case "requeue":
            held = bool(body.get("hold"))
            order = Order(verb="requeue", target="", held=held)
            return (lambda state, caller, target: requests.requeue(state, caller, target, held)), order
        case "suspend":
            return requests.suspend, Order(verb="suspend", target="")
        case "resume":
            return requests.resume, Order(verb="resume", target="")
        case "update":
            changes = _read_changes(body.get("changes"))
            order = Order(verb="update", target="", changes=changes)
            return (lambda state, caller, target: requests.update(state, caller, target, changes, now)), order
    raise ProblemError(400, f"verb: {verb!r} is none of cancel, hold, release, requeue, suspend, resume, update")


def _cancelling(body: dict[str, Any]) -> tuple[Change, Order]:
    number = whole(body, "signal")
    if number is None:
        return healings.cancel, Order(verb="cancel", target="")
    scope = "batch" if body.get("batch_only") else "all" if body.get("full") else body.get("scope", "steps")
    if scope not in ("batch", "steps", "all"):
        raise ProblemError(400, f"scope: {scope!r} is none of batch, steps, all")
    if number == requests.KILL and scope == "steps":
        scope = "all"  # as Slurm: SIGKILL without --batch ends the job

    def signal(state: State, caller: Caller, target: Target) -> list[Event]:
        """Slurm's scancel looks into the queue first where it is to send a signal, and not where it cancels."""
        Viewer(state, caller).must_see(requests.find(state, target))
        return requests.signal(state, caller, target, number, scope)

    return signal, Order(verb="signal", target="", signal=number, scope=scope)


def whole(body: dict[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is not None and (type(value) is not int or not 0 <= value <= 255):
        raise ProblemError(400, f"{name}: expected a whole number from 0 to 255")
    return value


def _read_changes(changes: Any) -> dict[str, Any]:
    """Typed values of the fields to change, within their ranges; raises WrongShapeError or ProblemError."""
    if not isinstance(changes, dict) or not changes:
        raise ProblemError(400, "changes: expected an object with at least one field")
    typed: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in CHANGEABLE:
            raise ProblemError(400, f"{name}: a job has no such field to change")
        if name == "array_throttle":
            typed[name] = codec.convert_field(ArraySpec, "throttle", value)
        elif name in requests.RESOURCE_FIELDS:
            typed[name] = codec.convert_field(ResourceRequest, name, value)
        else:
            typed[name] = codec.convert_field(JobSpec, name, value)
    try:
        check_changes(typed)
    except SlurmSyntaxError as error:
        raise ProblemError(400, str(error)) from None
    return typed


# -- of many jobs ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Errand:
    """One name as it was asked for, and what is to be decided about it."""

    name: str
    whole: Target | None = None
    """All that the name means; None where it means nothing."""
    targets: Sequence[Target] = ()
    """The same, one by one where it is decided so."""
    refusal: Refusal | None = None


@routes.post(
    "/v1/orders",
    body="`verb`: cancel, hold, release, requeue, suspend, resume or update, with its words as of `/v1/jobs/{job}/...`;"
    " `jobs`: a list of ids (`42`, `42_7`, `42_[0-99]`); `cluster`: only of this one.",
)
async def order_jobs(api: Context, request: Request) -> Response:
    """Ask the same of many jobs, in one commit; says of which it was done, and why not of the others."""
    body = await api.body(request)
    change, order = read_order(str(body.get("verb", "")), body, api.now())
    errands = _named(api.cluster.state, body, order)
    if body.get("cluster"):
        errands = [_kept_to(api, each, str(body["cluster"])) for each in errands]
    done, errors = await _carry_out(api, request, errands, change, order)
    return answer({"done": done, "errors": errors})


def _kept_to(api: Context, errand: _Errand, cluster: str) -> _Errand:
    """A job of another cluster is unknown here."""
    found = _known_by(api.cluster.state, errand.name) if errand.whole is not None else []
    ours = listing.matching(api.cluster.state, listing.Filter(clusters=(cluster,)), found, api.now())
    return errand if ours else _Errand(errand.name, refusal=errand.refusal or Refusal(Why.INVALID_JOB_ID))


@routes.post(
    "/v1/cancel",
    body="`jobs`: a list of ids; filters that must all match: `user`, `account`, `partition`, `state`, `name`, `nodes`,"
    " `qos`, `reservation`, `wckey`, `cluster`; and `signal`, `batch_only`, `full` as of cancel.",
)
async def cancel_jobs(api: Context, request: Request) -> Response:
    """Cancel or signal the jobs that are named, that all filters match, or both; says which, and what went wrong."""
    body = await api.body(request)
    change, order = _cancelling(body)
    wanted = listing.Filter.from_body(body)
    errands = _matching(api, request, body, wanted) if wanted else _named(api.cluster.state, body, order)
    done, errors = await _carry_out(api, request, errands, change, order)
    return answer({"cancelled": done, "errors": errors})


async def _carry_out(
    api: Context, request: Request, errands: Sequence[_Errand], change: Change, order: Order
) -> tuple[list[str], list[dict[str, Any]]]:
    """Names of which it was done, and the others with their refusals, both in the order in which they were asked."""
    caller = api.caller(request)
    decides: list[Decide] = []
    whose: list[_Errand] = []
    beside = api.cluster.engine.capabilities.queue is not None
    for errand in errands:
        if beside and await _passed_on(api, caller, errand, order):
            continue
        for target in errand.targets:
            decides.append(lambda state, _, target=target: change(state, caller, target))  # type: ignore[misc]
            whose.append(errand)
    for errand, answered in zip(whose, await api.cluster.do_all(api.cause(request), decides)):
        if isinstance(answered, Refusal):
            errand.refusal = errand.refusal or answered
    done = [errand.name for errand in errands if errand.refusal is None]
    return done, [_refused(errand.name, errand.refusal, errand) for errand in errands if errand.refusal is not None]


def _refused(name: str, refusal: Refusal, errand: _Errand) -> dict[str, Any]:
    """`unknown`: nothing was asked of anybody, since nobody has this name."""
    return {"job": name, **refusal_content(refusal), **({"unknown": True} if errand.whole is None else {})}


async def _passed_on(api: Context, caller: Caller, errand: _Errand, order: Order) -> bool:
    """Whether the errand was another scheduler's, which took it or refused."""
    try:
        return errand.whole is None or await passed_on(api, caller, errand.whole, order)
    except Refusal as refusal:
        errand.refusal = refusal
        return True


def _named(state: State, body: dict[str, Any], order: Order) -> list[_Errand]:
    errands: list[_Errand] = []
    count = 0
    for word in _words(body):
        errands.append(_errand(state, str(word), order))
        count += len(errands[-1].targets)
        if count > MOST_TARGETS:
            hint = f"jobs: more than {MOST_TARGETS:,} jobs and tasks at once: name whole arrays, or ask in parts"
            raise ProblemError(400, hint)
    return errands


def _words(body: dict[str, Any]) -> list[Any]:
    words = body.get("jobs", [])
    if not isinstance(words, list) or len(words) > MOST_NAMED:
        raise ProblemError(400, f"jobs: expected a list of at most {MOST_NAMED:,} ids")
    if sum(isinstance(word, str) and "[" in word for word in words) > MOST_RANGED:
        raise ProblemError(400, f"jobs: at most {MOST_RANGED} of them may have ranges of tasks: ask in parts")
    return words


def _errand(state: State, word: str, order: Order) -> _Errand:
    """Tasks that are not there are told of; what is asked of the others is done all the same, as in Slurm."""
    try:
        target = named_target(word)
    except Refusal as refusal:
        return _Errand(word, refusal=refusal)
    if not target.tasks:
        return _Errand(word, target, (target,))
    tasks, some_missing = requests.named_tasks(state, target)
    missing = Refusal(Why.INVALID_JOB_ID) if some_missing or not tasks else None
    if not tasks:
        return _Errand(word, refusal=missing)
    together = order.verb == "cancel"
    each = (target,) if together else [Target(target.job_id, task_id) for task_id in tasks]
    return _Errand(word, target, each, missing)


# -- by filters ------------------------------------------------------------------------------------------------------


def _matching(api: Context, request: Request, body: dict[str, Any], wanted: listing.Filter) -> list[_Errand]:
    """The jobs that have not ended and that every filter matches; of those that are named, where some are."""
    caller, state = api.caller(request), api.cluster.state
    words = _words(body)
    if not words:
        live = [job for job in state.jobs.values() if not isinstance(job.phase, Finished)]
        errands = {each.name: each for each in map(_exact, _seen_and_matching(api, caller, wanted, live))}
        return list(errands.values())
    errands = {}
    unknown: list[_Errand] = []
    for word in map(str, words):
        found = [job for job in _known_by(state, word) if not isinstance(job.phase, Finished)]
        found = [job for job in found if api.sees(caller, job.spec.owner.uid, job.spec.account)]
        if not found:
            unknown.append(_Errand(word, refusal=Refusal(Why.INVALID_JOB_ID)))
        for job in _seen_and_matching(api, caller, wanted, found):
            errand = _exact(job, _tasks_in(state, word, job))
            errands[errand.name] = errand
    return [*unknown, *errands.values()]


def _known_by(state: State, word: str) -> list[Job]:
    try:
        return requests.find(state, named_target(word))
    except Refusal:
        return []


def _tasks_in(state: State, word: str, job: Job) -> Sequence[int]:
    """Which of an array's waiting tasks the word means: all, where it names none."""
    target = named_target(word)
    if not isinstance(job.array, ArrayWaiting):
        return ()
    if target.task_id is not None:
        return (target.task_id,)
    if not target.tasks:
        return job.array.waiting
    there = set(job.array.waiting)
    return [task for task in requests.named_tasks(state, target)[0] if task in there]


def _seen_and_matching(api: Context, caller: Caller, wanted: listing.Filter, jobs: Sequence[Job]) -> list[Job]:
    state, now = api.cluster.state, api.now()
    matching = listing.matching(state, wanted, jobs, now)
    return [job for job in matching if api.sees(caller, job.spec.owner.uid, job.spec.account)]


def _exact(job: Job, tasks: Sequence[int] = ()) -> _Errand:
    """This record and no other, by the name that squeue shows: of an array what waits, or one task."""
    if isinstance(job.array, ArrayWaiting):
        target = Target(job.id, tasks=requests.ranges_of(sorted(tasks or job.array.waiting)))
    elif job.task_id is not None:
        target = Target(job.array_job_id or job.id, job.task_id)
    elif job.het_job_id is not None:
        whole = isinstance(job.phase, Pending)  # its components wait for each other: they go together
        target = Target(job.het_job_id, het_offset=None if whole else job.id - job.het_job_id)
    else:
        target = Target(job.id)
    return _Errand(written(target), target, (target,))
