"""A table of routes: method, path, handler, and what the OpenAPI document (`routes/description.py`) says about them.

Handlers take the context and the raw request and return a response: parsing into a framework's models would cost more
than the work itself on the routes that matter. Their docstrings are the descriptions.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as ServedRoute

from bireme.api.answers import Answers, Recipe, answer_in_slices, shared_answer
from bireme.api.cluster import Cluster, Service
from bireme.api.errands import Errands
from bireme.api.exporting.exporter import Exporter
from bireme.api.holders import Holders
from bireme.api.live import Live
from bireme.api.privacy import WORDS, Viewer
from bireme.api.problems import MOST_BESIDE, Bodies, ProblemError, parse_json, read_body
from bireme.api.roll import Rolls
from bireme.api.serving.asides import MOST_EACH, Asides, TooManyQuestionsError, UnansweredError
from bireme.api.serving.peers import SCOPE_KEY, WITHIN_KEY, Callers, is_gone
from bireme.api.serving.turns import Slots, Turns
from bireme.api.submitted import Submitted
from bireme.core.model.jobs import Job
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.ports import Followed, Store

OUT_OF_DATE = "bireme-out-of-date"
"""The header that says how old an answer's facts are, when they are older than they should be."""
VIEW = "bireme-view"
"""The header of an answer that is the same for all who have this view (`/v1/web/me` says who has which)."""
_SHOWS: dict[str, Followed] = {
    "/v1/history": "history",
    "/v1/jobs": "queue",
    "/v1/nodes": "nodes",
    "/v1/partitions": "nodes",
}

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Context:
    """What every handler needs."""

    cluster: Cluster
    archive: Store
    service: Service
    live: Live
    callers: Callers
    turns: Turns
    threads: Slots
    readers: Slots
    """Of processes that read users' files."""
    trials: Slots
    """Of requests to services, sent for who tries them."""
    bodies: Bodies
    answers: Answers
    errands: Errands
    asides: Asides
    holders: Holders
    submitted: Submitted
    exporter: Exporter
    rolls: Rolls

    def now(self) -> float:
        return self.cluster.clock.now()

    def caller(self, request: Request) -> Caller:
        return self.callers.caller(request.scope)

    def viewer(self, caller: Caller) -> Viewer:
        return Viewer(self.cluster.state, caller)

    def sees(self, caller: Caller, owner_uid: int, account: str) -> bool:
        """Whether `caller` may know of a job at all: everybody may, unless PrivateData says that jobs are private."""
        if caller.may_change(owner_uid) or "jobs" not in self.cluster.state.config.words("PrivateData"):
            return True
        return self.viewer(caller).sees_job(owner_uid, account)

    def seen(self, caller: Caller, jobs: Sequence[Job]) -> Sequence[Job]:
        """Those of these jobs that `caller` may know of: as `sees`, asked once where nothing is private."""
        if "jobs" not in self.cluster.state.config.words("PrivateData"):
            return jobs
        return [job for job in jobs if self.sees(caller, job.spec.owner.uid, job.spec.account)]

    def view(self, caller: Caller) -> str:
        """What all who see everything have in common, with what is hidden from the others; empty: not all is seen.

        With what is hidden: who saw all while nothing was private has not the view of an operator any more.
        """
        private = sorted(set(WORDS).intersection(self.cluster.state.config.words("PrivateData")))
        return "" if self.viewer(caller).hidden(*WORDS) else f"all:{','.join(private)}"

    def alike(self, request: Request, response: Response) -> Response:
        """Says with an answer that it is the same for all who have the caller's view."""
        if view := self.view(self.caller(request)):
            response.headers[VIEW] = view
        return response

    def inside_job(self, request: Request) -> int:
        """The job whose token brought this request; 0 for a request from this machine."""
        job_id: int = request.scope[SCOPE_KEY].job_id
        return job_id

    def keep_to_own_job(self, request: Request) -> None:
        """A job's token is good for that job only: it reads what its owner may read and changes nothing else."""
        job_id = self.inside_job(request)
        if not job_id or request.method == "GET" or request.url.path == "/v1/blobs":
            return
        own = self.cluster.state.jobs.get(job_id)
        members = [] if own is None else [own]
        if own is not None and own.het_job_id is not None:
            members = [job for job in self.cluster.state.jobs.values() if job.het_job_id == own.het_job_id]
        if request.path_params.get("job") not in {name for job in members for name in _names(job)}:
            raise Refusal(Why.ACCESS_DENIED, f"inside job {job_id} only the job itself can be changed")

    def cause(self, request: Request) -> str:
        """Who made it happen, for the journal: "uid 1000 sbatch"."""
        return f"uid {self.caller(request).uid} {request.headers.get('user-agent', 'api')[:40]}"

    def out_of_date(self, request: Request) -> str:
        """How old what is shown here of another scheduler is, where it should be younger; printable ASCII."""
        queue = self.cluster.engine.capabilities.queue if request.method == "GET" else None
        if queue is None:
            return ""
        shown = next((what for path, what in _SHOWS.items() if request.url.path.startswith(path)), None)
        said = queue.out_of_date(shown) if shown is not None else ""
        return "".join(letter if " " <= letter <= "~" else "?" for letter in said)

    async def raw_body(self, request: Request) -> bytes:
        """Of no more bytes than a script in JSON and much beside it has: it is decoded on the loop in one piece."""
        most = 2 * self.cluster.state.config.settings.max_script_bytes + MOST_BESIDE
        return await read_body(request, min(most, self.service.max_body_bytes), self.bodies)

    async def body(self, request: Request) -> dict[str, Any]:
        return parse_json(await self.raw_body(request))

    async def in_slices(self, request: Request, recipe: Recipe[Any]) -> Response:
        """The answer to this request, made in the caller's turns."""
        return await answer_in_slices(self.answers, self.turns, request, recipe)

    async def shared(self, request: Request, private: str, recipe: Recipe[Any]) -> Response:
        """An answer made in slices, once for all who ask in these words: those who see the same of what may be
        private."""
        caller = self.caller(request)
        sees_all = caller.admin or private not in self.cluster.state.config.words("PrivateData")
        question = (request.url.path, request.scope["query_string"], None if sees_all else caller.uid)
        return await shared_answer(self.answers, self.turns, request, question, recipe)

    async def in_thread(self, request: Request, work: Callable[..., Result], *arguments: Any) -> Result:
        """Runs it beside the loop: few at a time, and users in turn."""
        async with self.threads.held_by(request.scope[SCOPE_KEY].uid):
            return await asyncio.to_thread(work, *arguments)

    async def aside(self, request: Request, think: Callable[[], Result]) -> Result:
        """What takes long to compute, in a process that has the state as it is: it may do nothing but compute."""
        try:
            return await self.asides.ask(request.scope[SCOPE_KEY].uid, think, lambda: is_gone(request.scope))
        except TooManyQuestionsError:
            hint = f"{MOST_EACH} questions of yours that take long are being thought about: wait for one of them"
            raise ProblemError(429, "Too many requests at once", errno=11, hint=hint) from None
        except UnansweredError as error:
            raise ProblemError(503, f"There is no answer: {error}", errno=11, hint="ask again") from error


def _names(job: Job) -> tuple[str, ...]:
    """How a command may call it."""
    return str(job.id), job.label


Handler = Callable[[Context, Request], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    handler: Handler
    query: dict[str, str]
    body: str
    media: str
    waits: bool
    """It is not answered at once: nothing that runs within the daemon may ask for it."""


class Routes:
    """Collects the routes of one module: `@routes.get("/v1/ping")`."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.table: list[Route] = []

    def get(self, path: str, *, media: str = "application/json", **query: str) -> Callable[[Handler], Handler]:
        return self._add("GET", path, query, "", media)

    def get_waiting(self, path: str, *, media: str = "application/json", **query: str) -> Callable[[Handler], Handler]:
        """Registers a reading route that may wait before it answers."""
        return self._add("GET", path, query, "", media, waits=True)

    def post(self, path: str, *, body: str = "", **query: str) -> Callable[[Handler], Handler]:
        return self._add("POST", path, query, body, "application/json")

    def _add(
        self, method: str, path: str, query: dict[str, str], body: str, media: str, *, waits: bool = False
    ) -> Callable[[Handler], Handler]:
        def register(handler: Handler) -> Handler:
            self.table.append(Route(method, path, handler, query, body, media, waits))
            return handler

        return register

    def mount(self, app: Starlette, context: Context) -> dict[tuple[str, str], Endpoint]:
        """Serves them; returns those that are found by their method and their path alone."""
        plain: dict[tuple[str, str], Endpoint] = {}
        for route in self.table:
            endpoint = _endpoint(route, context)
            if "{" not in route.path:
                plain[route.method, route.path] = endpoint
            app.router.routes.append(served(route.method, route.path, endpoint, route.handler.__name__))
        return plain


def served(method: str, path: str, endpoint: Endpoint, name: str) -> ServedRoute:
    """A route of the framework's for this method alone: it would answer HEAD beside GET."""
    made = ServedRoute(path, endpoint, methods=[method], name=name)
    made.methods = {method}
    return made


def _endpoint(route: Route, context: Context) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        if route.waits and request.scope.get(WITHIN_KEY):
            raise ProblemError(400, "a command that runs in the daemon does not wait there")
        await context.callers.learn(request.scope)
        context.keep_to_own_job(request)
        response = await route.handler(context, request)
        remark = context.out_of_date(request)
        if remark:
            response.headers[OUT_OF_DATE] = remark
        return response

    return endpoint


MOST_FIELDS = 256
"""No record has more."""


def number(request: Request, name: str, default: float) -> float:
    """A number from the query string."""
    text = request.query_params.get(name)
    if text is None or text == "":
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ProblemError(400, f"{name}={text[:80]!r} is not a number")
    return value


def is_id(text: str) -> bool:
    """Whether it is the number of a user, a job or an event: not any digits that Unicode has, nor thousands of them."""
    return text.isascii() and text.isdigit() and len(text) <= 18


def flag(request: Request, name: str) -> bool:
    if not request.scope["query_string"]:  # as of nearly every submission
        return False
    return request.query_params.get(name, "") not in ("", "0", "false", "no")


def words(request: Request, name: str) -> tuple[str, ...]:
    """A comma-separated list from the query string, each word once."""
    return tuple(dict.fromkeys(word for word in request.query_params.get(name, "").split(",") if word))


def fields_of(request: Request) -> tuple[str, ...]:
    """Which fields of each record are asked for: all where none is. They are looked up for every record."""
    names = words(request, "fields")
    if len(names) > MOST_FIELDS:
        raise ProblemError(400, f"fields: at most {MOST_FIELDS} of them, or none for all")
    return names
