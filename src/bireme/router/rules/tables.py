"""Whether a table can be gone by. Asked by the supervisor before any worker sees it; the daemon is told what is wrong.

Invariant: a worker never gets a table in which a name is there twice, or a number that it would stumble over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from bireme.router.messages import Service, Table

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_RESERVED = ("v1", "-")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_FIELD = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]*")


def mistake(table: Table) -> str:
    """What is wrong with it; empty when nothing is."""
    if table.serial < 1:
        return "a table's serial is a number above zero"
    services = table.services
    if twice := _twice(service.name for service in services):
        return f"two services are called {twice}"
    if twice := _twice(replica.id for service in services for replica in service.replicas):
        return f"two replicas have the id {twice}"
    return next(filter(None, map(_of_service, services)), "")


def _twice(names: Iterable[str]) -> str:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""


def _of_service(service: Service) -> str:
    where = f"service {service.name}: "
    if not _NAME.fullmatch(service.name) or service.name in _RESERVED:
        return f"{service.name!r} is no name of a service"
    if min(service.max_concurrency, service.queue, service.body_limit) < 0:
        return where + "limits are not below zero"
    if any(not _is_weight(weight) for weight in service.revision_weights.values()):
        return where + "a revision's weight is a number from zero up"
    if not _FIELD.fullmatch(service.affinity_header) or not _FIELD.fullmatch(service.affinity_cookie):
        return where + "affinity goes by the name of a header field or a cookie"
    for replica in service.replicas:
        if not 0 < replica.port < 65536 or not replica.host or not replica.id:
            return where + f"replica {replica.id!r} has no address"
        if not _is_weight(replica.weight) or not replica.weight:
            return where + f"replica {replica.id} has no weight"
    if twice := _twice(key.id for key in service.keys):
        return where + f"two keys are called {twice}"
    if any(not _SHA256.fullmatch(key.sha256) for key in service.keys):
        return where + "a key is 64 hexadecimal digits of SHA-256"
    return ""


def _is_weight(weight: float) -> bool:
    return 0 <= weight < 1e9
