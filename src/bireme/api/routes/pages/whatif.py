"""`POST /v1/whatif`: a change of the cluster, planned on the state as it is, and what it does to every waiting job.

The planner's own pass, twice, beside the loop (`asides`): as it is, and with more nodes, nodes taken out, other keys of
slurm.conf, other limits. It says when jobs would start if all run as long as they may; `bireme whatif` plays the same
changes to their end in a simulator, with run times guessed from the history. Nothing of the cluster is changed.

Invariants: who may not take a snapshot (PrivateData) may not ask; a change that cannot be made is refused before
anything is planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bireme.api.privacy import WORDS
from bireme.api.problems import ProblemError, answer
from bireme.api.routing import Context, Routes
from bireme.core.accounting.orders import Orders
from bireme.core.accounts.bookkeeping import change_accounts
from bireme.core.explain.wording import sentence
from bireme.core.lifecycle.apply import apply
from bireme.core.model import events as e
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.nodes import operators
from bireme.core.placement.demand import requested_tres, resolve
from bireme.core.plan.trial import Foreseen, foresee
from bireme.core.priority.order import reprioritise
from bireme.core.state.state import State
from bireme.slurm.conf.altered import Alteration, BadChangeError, BadClusterError, altered, drained_nodes
from bireme.slurm.conf.diagnostics import ConfigurationError
from bireme.store import codec
from bireme.store.planning_input import decode_input, encode_input

routes = Routes("planning")
_ANYBODY = Caller(uid=0, gid=0, user="root", admin=True)
"""Nothing is changed, so it is nobody's right that is asked for."""
MOST_NEW_NODES = 10_000
MOST_TOLD = 1_000
_SAME_S = 1.0
_WORDS = ("add_nodes", "drain")


@routes.post(
    "/v1/whatif",
    body="`add_nodes` (`8x8:h100 partition=train`, a list), `drain` (switches, or nodes as hostlists), `keys` (of "
    "slurm.conf, by name), `orders` (of the account book, as for /v1/accounting/changes). What is left out stays.",
)
async def plan_change(api: Context, request: Request) -> Response:
    """Plan the queue as it is and with a change, and tell what differs.

    `before` and `after`: nodes, gpus, cpus, and of the waiting jobs how many start now, later, or without a time that
    is known; `jobs`: each waiting job with both starts (seconds since the epoch, null: none is known) and, where none
    is known, `why`. Those whose start changes come first. Jobs are taken to run for as long as they may.
    """
    caller, state, now = api.caller(request), api.cluster.state, api.now()
    if api.viewer(caller).hidden(*WORDS):
        raise Refusal(Why.ACCESS_DENIED, "a plan shows everybody's jobs, and PrivateData is set on this cluster")
    body = await api.body(request)
    events, new = _events(state, _alteration(body), _orders(body))
    version = api.service.version
    return answer(await api.aside(request, lambda: _compared(state, now, version, events, new)))


def _alteration(body: dict[str, Any]) -> Alteration:
    lists = {name: body.get(name) or [] for name in _WORDS}
    for name, given in lists.items():
        if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
            raise ProblemError(400, f"{name}: expected a list of texts")
    keys = body.get("keys") or {}
    if not isinstance(keys, dict) or not all(isinstance(value, str) for value in keys.values()):
        raise ProblemError(400, "keys: expected an object with texts, as slurm.conf has them")
    return Alteration(add_nodes=tuple(lists["add_nodes"]), drain=tuple(lists["drain"]), keys=keys)


def _orders(body: dict[str, Any]) -> Orders:
    return codec.convert(Orders, {"orders": body.get("orders") or []})


def _events(state: State, alteration: Alteration, orders: Orders) -> tuple[list[e.Event], list[str]]:
    """What the change comes to, judged against the state as it is; and the names of nodes that are new."""
    events: list[e.Event] = []
    new: list[str] = []
    try:
        if alteration.add_nodes or alteration.keys:
            config = altered(state.config, alteration)
            new = [node.name for node in config.nodes if node.name not in state.nodes]
            events.append(e.ClusterConfigured(config))
        if len(new) > MOST_NEW_NODES:
            raise BadChangeError(f"{len(new)} nodes more are too many to plan here: at most {MOST_NEW_NODES}")
        gone = drained_nodes(state.config, alteration.drain) if alteration.drain else []
    except (BadChangeError, BadClusterError, ConfigurationError) as error:
        raise ProblemError(400, str(error)) from error
    if gone:
        events += operators.update_nodes(state, _ANYBODY, gone, "DRAIN", "what if")
    changes, _ = change_accounts(state, _ANYBODY, orders.orders)
    return [*events, *changes], new


def _compared(state: State, now: float, version: str, events: Sequence[e.Event], new: Sequence[str]) -> dict[str, Any]:
    """In a forked child, which others' questions may share: it plans copies."""
    data = encode_input(state, now, version)
    as_is, changed = decode_input(data).state, decode_input(data).state
    for event in (*events, *(e.NodeRegistered(name, now) for name in new)):
        apply(changed, e.Recorded(changed.seq + 1, now, "what if", event))
    reprioritise(changed, now)
    before, after = foresee(as_is, now), foresee(changed, now)
    rows = [_row(as_is, job_id, before, after) for job_id in as_is.pending]
    rows.sort(key=lambda row: (not row["changes"], _last(row["after"]), row["job_id"]))
    told = {"before": _sums(as_is, before, now), "after": _sums(changed, after, now)}
    return {**told, "jobs": rows[:MOST_TOLD], "left_out": max(0, len(rows) - MOST_TOLD), "now": now}


def _last(at: float | None) -> float:
    return float("inf") if at is None else at


def _row(state: State, job_id: int, before: Foreseen, after: Foreseen) -> dict[str, Any]:
    job = state.pending[job_id]
    partition = next((state.partitions[name] for name in job.spec.partitions if name in state.partitions), None)
    tres = requested_tres(resolve(job.spec, partition, state.config.settings)) if partition is not None else {}
    start, then = before.starts.get(job_id), after.starts.get(job_id)
    same = start == then or (start is not None and then is not None and abs(start - then) < _SAME_S)
    return {
        "job": job.label,
        "job_id": job_id,
        "name": job.spec.name,
        "user": job.spec.owner.user,
        "account": job.spec.account,
        "partition": ",".join(job.spec.partitions),
        "gpus": tres.get("gres/gpu", 0),
        "nodes": tres.get("node", 1),
        "before": start,
        "after": then,
        "changes": not same,
        "why": [sentence(each) for each in after.reasons.get(job_id, ())],
    }


def _sums(state: State, foreseen: Foreseen, now: float) -> dict[str, Any]:
    usable = [node for node in state.nodes.values() if node.schedulable]
    starts = foreseen.starts.values()
    at_once = sum(at <= now for at in starts)
    return {
        "nodes": len(usable),
        "gpus": sum(pool.count for node in usable for pool in node.config.gres if pool.name == "gpu"),
        "cpus": sum(node.config.cpus for node in usable),
        "start_now": at_once,
        "start_later": len(starts) - at_once,
        "unknown": len(state.pending) - len(starts),
        "mean_wait_s": sum(at - now for at in starts) / len(starts) if starts else None,
    }
