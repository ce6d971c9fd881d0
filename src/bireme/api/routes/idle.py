"""Idle GPUs: who holds them without using them, what the policy would do about it, and what the pool would win."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bireme.api.problems import answer
from bireme.api.routing import Context, Routes
from bireme.core.idle.listing import Listed, listed
from bireme.core.idle.shelves import policy_of
from bireme.core.model.idling.policy import IdleAction, IdleMode, IdlePolicy
from bireme.core.state.state import State
from bireme.core.why.freed import started_if_ended
from bireme.ports import Telemetry

routes = Routes("telemetry")

_HIT = ("due", "told")
"""Stages in which a job has been idle for as long as its rule says."""


@routes.get("/v1/idle", trial="0: leave out which waiting jobs would start (a planning pass).")
async def idle_jobs(api: Context, request: Request) -> Response:
    """Every running job with GPUs that the caller may see, as the policy for idle GPUs sees it.

    `stage`: `told` (its owner was), `due` (would be, by now), `idle` (not for long enough), `busy`, `unknown` (a figure
    is missing: nothing is done), `exempt`, `unruled`. `pool`: what is idle and what would be won, of these jobs.
    """
    caller, state, now = api.caller(request), api.cluster.state, api.now()
    policy = policy_of(state)
    rows = [each for each in listed(state, api.service.idle(), now) if _sees(api, request, each.job_id)]
    hit = [each.job_id for each in rows if each.stage in _HIT and each.action != IdleAction.NOTIFY]
    starts: list[int] | None = None
    if request.query_params.get("trial") != "0":
        starts = await api.aside(request, lambda: started_if_ended(state, hit, now)) if hit and state.pending else []
        starts = [job_id for job_id in starts if _sees(api, request, job_id)]
    return answer(
        {
            "now": now,
            "mode": policy.mode.value,
            "policy": policy.source if policy.mode is not IdleMode.OFF else "",
            "problem": _why_unknown(api.service.telemetry()),
            "warnings": _warnings(state, policy) if not api.viewer(caller).hidden("partitions", "accounts") else [],
            "jobs": [asdict(each) for each in rows],
            "pool": _pool(rows, hit, starts),
        }
    )


def _why_unknown(telemetry: Telemetry | None) -> str:
    """What keeps figures of GPUs from being known; empty: nothing."""
    if telemetry is None:
        return "telemetry.gather is off: nothing is measured"
    if telemetry.problem:
        return telemetry.problem
    if all(one.at is None for one in telemetry.newest_rounds()):
        return "no figures came yet since the daemon started: ask again in some seconds"
    return ""


def _sees(api: Context, request: Request, job_id: int) -> bool:
    job = api.cluster.state.jobs.get(job_id)
    return job is not None and api.sees(api.caller(request), job.spec.owner.uid, job.spec.account)


def _pool(rows: list[Listed], hit: list[int], starts: list[int] | None) -> dict[str, Any]:
    idle = [each for each in rows if each.since is not None]
    ended = [each for each in rows if each.job_id in set(hit)]
    return {
        "gpus": sum(each.gpus for each in rows),
        "gpus_idle": sum(each.gpus_idle for each in idle),
        "wasted_gpu_hours": round(sum(each.wasted_gpu_hours for each in idle), 2),
        "gpus_freed": sum(each.gpus for each in ended),
        "wins_gpu_hours": round(sum(each.wins_gpu_hours or 0.0 for each in ended), 2),
        "endless": [each.job_id for each in ended if each.wins_gpu_hours is None],
        "would_start": starts,
    }


def _warnings(state: State, policy: IdlePolicy) -> list[str]:
    """Names in the policy that nothing has: a rule for them is for nobody."""
    found: list[str] = []
    for rule in policy.rules:
        known = (
            ("partition", (*rule.partitions, *filter(None, (rule.move_to,))), state.partitions),
            ("QOS", (*rule.qos, *rule.exempt_qos), state.accounts.qos),
            ("account", (*rule.accounts, *rule.exempt_accounts), state.accounts.accounts),
        )
        for what, names, there in known:
            found += [f"[{rule.name}]: there is no {what} {name}" for name in names if name not in there]
    return found
