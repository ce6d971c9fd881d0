"""What requests find a service by, and how they are treated on the way: whether a revision may ask for that.

A host name or a model's name leads to one service. Who has it keeps it: else anybody could take another's requests by
naming it too. Called when a service is deployed. Not here: which replica gets a request (`router/`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isfinite

from bireme.core.model.serving.names import is_host, is_model, is_token
from bireme.core.model.serving.services import Routing, Service, ServiceSpec
from bireme.core.state.state import State

MOST_NAMES = 32
"""Of hosts, and of models."""
MOST_QUEUED = 1_000_000


def wrong_routing(state: State, spec: ServiceSpec) -> str:
    """What is wrong with it, in a sentence; empty: nothing."""
    routing = spec.routing
    return _wrong_names(routing) or _wrong_amounts(routing) or _taken(state, spec)


def count_of_names(routing: Routing, others: Iterable[Service]) -> int:
    """Hosts and models that a revision with this routing and these services have together."""
    names = {*routing.hosts, *routing.models}
    return len(names.union(*({*_hosts(other), *_models(other)} for other in others)))


def _wrong_names(routing: Routing) -> str:
    if len(routing.hosts) > MOST_NAMES or len(routing.models) > MOST_NAMES:
        return f"a service has at most {MOST_NAMES} --host and {MOST_NAMES} --model"
    for host in routing.hosts:
        if not is_host(host):
            return f"--host={host[:80]!r} is no host name in small letters, or every machine's own"
    for model in routing.models:
        if not is_model(model):
            return f"--model={model[:80]!r} has spaces, commas or other letters that no model's name has"
    for flag, name in (("header", routing.affinity_header), ("cookie", routing.affinity_cookie)):
        if name and not is_token(name):
            return f"--affinity-{flag}={name[:80]!r} cannot be the name of a {flag}"
    return ""


def _wrong_amounts(routing: Routing) -> str:
    times = (
        routing.queue_timeout_s,
        routing.connect_timeout_s,
        routing.first_byte_timeout_s,
        routing.idle_timeout_s,
        1.0 if routing.total_timeout_s is None else routing.total_timeout_s,
    )
    if not all(isfinite(seconds) and seconds > 0 for seconds in times):
        return "time limits of requests are above 0"
    if routing.max_concurrency is not None and routing.max_concurrency < 1:
        return "--max-concurrency is 1 at least"
    if not 0 <= routing.queue_limit <= MOST_QUEUED:
        return f"--queue is 0 to {MOST_QUEUED}"
    if routing.body_limit is not None and routing.body_limit < 1:
        return "--body-limit is 1 byte at least"
    return ""


def _taken(state: State, spec: ServiceSpec) -> str:
    others = [each for each in state.services.values() if each.name != spec.name]
    routing = spec.routing
    for other in others:
        if spec.name in _models(other):
            return f"{spec.name!r} is a model of another service: choose another name"
        for host in {*routing.hosts} & {*_hosts(other)}:
            return f"--host={host} is another service's"
        for model in {*routing.models} & {other.name, *_models(other)}:
            return f"--model={model} is another service's"
    return ""


def _hosts(service: Service) -> Iterator[str]:
    for revision in service.revisions.values():
        yield from revision.spec.routing.hosts


def _models(service: Service) -> Iterator[str]:
    for revision in service.revisions.values():
        yield from revision.spec.routing.models
