"""The application that answers requests (ASGI): every route in one place.

Made by the daemon around a runtime and a store, and by tests around small ones. Invariant: routes that are asked for
most are registered first, since they are looked up in order.
"""

from __future__ import annotations

from starlette._exception_handler import wrap_app_handling_exceptions
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from bireme.api import problems
from bireme.api.answers import Answers
from bireme.api.cluster import Cluster, Service
from bireme.api.errands import Errands
from bireme.api.exporting.exporter import Exporter
from bireme.api.holders import Holders
from bireme.api.live import Live
from bireme.api.problems import Bodies
from bireme.api.roll import Rolls
from bireme.api.routes import (
    accounting,
    commands,
    diagnosis,
    experiments,
    history,
    idle,
    jobs,
    operations,
    orders,
    priorities,
    reports,
    reservations,
    services,
    steps,
    submissions,
    telemetry,
    timelines,
    why,
)
from bireme.api.routes.description import describe
from bireme.api.routes.faults import findings, healings
from bireme.api.routes.pages import audit, changes, explaining, foreseeing, gpus, queue, sessions, trying, whatif
from bireme.api.routing import Context, Endpoint, served
from bireme.api.serving.asides import Asides
from bireme.api.serving.bearers import become
from bireme.api.serving.peers import SCOPE_KEY, Callers
from bireme.api.serving.turns import Slots, Turns
from bireme.api.serving.unread import AsItIsRead, Unread
from bireme.api.submitted import Submitted
from bireme.collector import collect_a_little
from bireme.identity.sessions import Sessions
from bireme.ports import Store

THREADS, THREADS_EACH = 4, 2
"""So many look into the store at a time, and so many of one user."""
READERS, READERS_EACH = 3, 1
"""So many processes read users' files at a time, for one user so many."""
TRIALS, TRIALS_EACH = 8, 1
"""So many requests of people who try services are under way, and so many of one user."""

TABLES = (
    submissions.routes,
    telemetry.routes,
    timelines.routes,
    commands.routes,
    diagnosis.routes,
    experiments.routes,
    findings.routes,
    healings.routes,
    jobs.routes,
    orders.routes,
    operations.routes,
    steps.routes,
    history.routes,
    idle.routes,
    reports.routes,
    accounting.routes,
    priorities.routes,
    reservations.routes,
    services.routes,
    trying.routes,
    sessions.routes,
    changes.routes,
    foreseeing.routes,
    gpus.routes,
    queue.routes,
    why.routes,
    whatif.routes,
    explaining.routes,
    audit.routes,
)
"""What is asked for most comes first."""


class Api(Starlette):
    """The application, with a shorter way to the routes that are found by their method and path alone.

    They take nothing of what the framework works out for a request: which route it is, and what is in its path. Turns,
    long answers and errors are the same on both ways; the longer one is for paths with a variable part and for
    everything that is no route.
    """

    def __init__(self, turns: Turns, unread: Unread, sessions: Sessions | None) -> None:
        super().__init__()
        self._sessions = sessions
        self.plain: dict[tuple[str, str], Endpoint] = {}
        self._short = TakesTurns(AsItIsRead(self._answer, turns, unread), turns)
        self.add_middleware(AsItIsRead, turns=turns, unread=unread)
        self.add_middleware(TakesTurns, turns=turns)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not become(scope, self._sessions):
            await problems.not_logged_in()(scope, receive, send)
        elif (scope.get("method"), scope.get("path")) in self.plain:
            scope["app"] = self
            await self._short(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["starlette.exception_handlers"] = (self.exception_handlers, {})
        request = Request(scope, receive, send)
        try:
            response = await self.plain[scope["method"], scope["path"]](request)
        except Exception as error:
            response = await problems.answer_to(self, request, error)
        if type(response) is Response:
            await response(scope, receive, send)
        else:  # one that is made as it is sent, and may fail on the way
            await wrap_app_handling_exceptions(response, request)(scope, receive, send)


class TakesTurns:
    """Lets a request begin when it is its user's turn."""

    def __init__(self, app: ASGIApp, turns: Turns) -> None:
        self._app = app
        self._turns = turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"  # `server.py` serves nothing else
        uid = scope[SCOPE_KEY].uid
        try:
            await self._turns.begin(uid)
            await self._app(scope, receive, send)
        finally:
            self._turns.end(uid)
        collect_a_little()


def create_app(cluster: Cluster, archive: Store, service: Service) -> Api:
    turns, unread = Turns(), Unread()
    app = Api(turns, unread, service.sessions)
    live = Live()
    cluster.subscribe(live.publish)
    clock = cluster.clock
    callers = Callers(service.owner_uid, service.operators, clock.now)
    threads, bodies = Slots(THREADS, THREADS_EACH), Bodies(2 * service.max_body_bytes)
    answers = Answers(lambda: (id(cluster.state), cluster.state.seq, cluster.state.planned_at))
    readers, trials = Slots(READERS, READERS_EACH), Slots(TRIALS, TRIALS_EACH)
    errands, asides, holders = Errands(answers.version, unread.is_full), Asides(), Holders(cluster, live)
    submitted = Submitted(archive.put)
    context = Context(
        cluster, archive, service, live, callers, turns, threads, readers, trials, bodies, answers, errands, asides,
        holders, submitted, Exporter(cluster, service), Rolls(lambda: cluster.state, answers.version, queue.parts_of),
    )  # fmt: skip
    app.state.context, app.state.unread = context, unread
    problems.install(app)
    for table in TABLES:
        app.plain |= table.mount(app, context)

    async def openapi(_: Request) -> Response:
        return problems.answer(describe(TABLES, service.version))

    app.router.routes.append(served("GET", "/v1/openapi.json", openapi, "openapi"))
    return app
