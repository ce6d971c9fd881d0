"""The OpenAPI document of the API, at /v1/openapi.json, made of the tables of routes when somebody asks for it.

Called by `api/app.py`. Not here: what a route is (`api/routing.py`); answering it.
Invariant: everything that a route says of itself is in the document: its handler's docstring, its parameters, its body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bireme.api.routing import Route, Routes

_DESCRIPTION = """The API of one Bireme cluster, on a unix socket. Who asks is known from the socket's peer credentials,
or from a session's token (`Authorization: Bearer`).

Times are seconds since the epoch, sizes MiB, resources whole numbers. Errors carry Slurm's message, name and number."""

IN_PATH = {
    "command": "One of Slurm's commands: `squeue`.",
    "job": "A job as people write it: `42`, an array task `42_7`, or a component of a heterogeneous job `42+1`.",
    "namespace": "A namespace of the Kubernetes cluster.",
    "pod": "The name of a pod in it.",
    "node": "Name of a node.",
    "step": "Number of a step.",
    "name": "Name of a partition or of a reservation.",
    "service": "Name of a service.",
    "finding": "The number of a finding.",
    "healing": "The number of a healing.",
    "key": "The name of a key of it, as the list of keys has it.",
}

_ERROR = {
    "description": "Refused or failed. `message` is Slurm's sentence where Slurm has one; `hint` says more.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {
                    "error": {
                        "type": "object",
                        "properties": {
                            "message": {"type": "string"},
                            "code": {"type": ["string", "null"], "examples": ["ESLURM_INVALID_PARTITION_NAME"]},
                            "slurm_errno": {"type": ["integer", "null"]},
                            "hint": {"type": "string"},
                        },
                    }
                },
            }
        }
    },
}


def describe(tables: Sequence[Routes], version: str) -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for table in tables:
        for route in table.table:
            paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, table.tag)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Bireme", "description": _DESCRIPTION, "version": version},
        "paths": paths,
        "components": {"responses": {"Error": _ERROR}},
    }


def _operation(route: Route, tag: str) -> dict[str, Any]:
    lines = [line.strip() for line in (route.handler.__doc__ or "").strip().split("\n")]
    operation: dict[str, Any] = {
        "tags": [tag],
        "summary": lines[0].rstrip("."),
        "description": "\n".join(lines),
        "operationId": route.handler.__name__,
        "responses": {
            "200": {"description": "Done.", "content": {route.media: {}}},
            "4XX": {"$ref": "#/components/responses/Error"},
        },
    }
    if parameters := [*_in_path(route), *_in_query(route)]:
        operation["parameters"] = parameters
    if route.body:
        schema = {"type": "object", "description": route.body}
        operation["requestBody"] = {"content": {"application/json": {"schema": schema}}, "description": route.body}
    return operation


def _in_path(route: Route) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "description": IN_PATH[name]}
        for name in names
    ]


def _in_query(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "query", "required": False, "schema": {"type": "string"}, "description": text}
        for name, text in route.query.items()
    ]
