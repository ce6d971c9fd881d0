"""The FastAPI application: every route in one place, with its OpenAPI document at /v1/openapi.json.

Made by the daemon around a runtime and a store, and by tests around small ones. Invariant: routes that are asked for
most are registered first, since they are looked up in order.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from bireme.api import (
    accounting,
    history,
    jobs,
    operations,
    orders,
    priorities,
    problems,
    reservations,
    steps,
    submissions,
    why,
)
from bireme.api.cluster import Archive, Cluster, Service
from bireme.api.live import Live
from bireme.api.peers import Callers
from bireme.api.routing import ERROR_RESPONSE, Context

DESCRIPTION = """The API of one Bireme cluster, on a unix socket. Who asks is known from the socket's peer credentials.

Times are seconds since the epoch, sizes MiB, resources whole numbers. Errors carry Slurm's message, name and number."""


def create_app(cluster: Cluster, archive: Archive, service: Service) -> FastAPI:
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
    context = Context(cluster, archive, service, live, callers)
    app.state.context = context
    problems.install(app)
    for module in (submissions, jobs, orders, operations, steps, history, accounting, priorities, reservations, why):
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
