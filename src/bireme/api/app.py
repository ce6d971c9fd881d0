"""The FastAPI application: every route in one place, with its OpenAPI document at /v1/openapi.json.

Made by the daemon around a runtime and a store, and by tests around small ones. Invariant: routes that are asked for
most are registered first, since they are looked up in order.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from bireme.api import problems
from bireme.api.answers import Answers
from bireme.api.cluster import Cluster, Service
from bireme.api.errands import Errands
from bireme.api.holders import Holders
from bireme.api.live import Live
from bireme.api.problems import Bodies
from bireme.api.routes import (
    accounting,
    commands,
    history,
    jobs,
    operations,
    orders,
    priorities,
    reservations,
    services,
    steps,
    submissions,
    why,
)
from bireme.api.routing import ERROR_RESPONSE, Context
from bireme.api.serving.asides import Asides
from bireme.api.serving.peers import SCOPE_KEY, Callers
from bireme.api.serving.turns import Slots, Turns
from bireme.api.serving.unread import AsItIsRead, Unread
from bireme.collector import collect_a_little
from bireme.ports import Store

DESCRIPTION = """The API of one Bireme cluster, on a unix socket. Who asks is known from the socket's peer credentials.

Times are seconds since the epoch, sizes MiB, resources whole numbers. Errors carry Slurm's message, name and number."""


THREADS, THREADS_EACH = 4, 2
"""So many look into the store at a time, and so many of one user."""


class TakesTurns:
    """Lets a request begin when it is its user's turn."""

    def __init__(self, app: ASGIApp, turns: Turns) -> None:
        self._app = app
        self._turns = turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"  # `server.py` serves nothing else
        async with self._turns.request_of(scope[SCOPE_KEY].uid):
            await self._app(scope, receive, send)
        collect_a_little()


def create_app(cluster: Cluster, archive: Store, service: Service) -> FastAPI:
    app = FastAPI(
        title="Bireme",
        version=service.version,
        description=DESCRIPTION,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    live = Live()
    cluster.subscribe(live.publish)
    clock = cluster.clock
    callers = Callers(service.owner_uid, service.operators, clock.now)
    turns, unread = Turns(), Unread()
    threads, bodies = Slots(THREADS, THREADS_EACH), Bodies(2 * service.max_body_bytes)
    answers = Answers(lambda: (id(cluster.state), cluster.state.seq, cluster.state.planned_at))
    errands, asides, holders = Errands(answers.version, unread.is_full), Asides(), Holders(cluster, live)
    context = Context(
        cluster, archive, service, live, callers, turns, threads, bodies, answers, errands, asides, holders
    )
    app.state.context, app.state.unread = context, unread
    app.add_middleware(AsItIsRead, turns=turns, unread=unread)
    app.add_middleware(TakesTurns, turns=turns)
    problems.install(app)
    for module in (
        submissions,
        commands,
        jobs,
        orders,
        operations,
        steps,
        history,
        accounting,
        priorities,
        reservations,
        services,
        why,
    ):
        module.routes.mount(app, context)
    _describe_errors(app)
    return app


def _describe_errors(app: FastAPI) -> None:
    original = app.openapi

    def openapi() -> dict[str, Any]:
        document = original()
        document.setdefault("components", {}).setdefault("responses", {})["Error"] = ERROR_RESPONSE
        return document

    app.openapi = openapi  # type: ignore[method-assign]
