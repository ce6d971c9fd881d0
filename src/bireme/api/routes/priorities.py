"""Who goes first, and why: the parts of every waiting job's priority, and `scontrol top`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bireme.api.answers import Recipe
from bireme.api.listing import Filter, matching
from bireme.api.passing import check_own_book
from bireme.api.problems import ProblemError, answer
from bireme.api.routing import Context, Routes, words
from bireme.api.targets import all_targets, named_jobs
from bireme.core.jobs.ranking import top
from bireme.core.jobs.requests import find
from bireme.core.model.events import Event
from bireme.core.model.jobs import Job, Pending
from bireme.core.state.state import State
from bireme.slurm.records.priorities import priority_records, weights_record

routes = Routes("priorities")


@routes.get(
    "/v1/priorities",
    user="Only jobs of these users (names or ids).",
    partition="Only lines of these partitions.",
    job="Only these jobs.",
)
async def list_priorities(api: Context, request: Request) -> Response:
    """The weighed factors of each waiting job's priority, and the weights. Empty with priority/basic."""
    check_own_book(api)
    state = api.cluster.state
    multifactor = state.config.settings.priority.multifactor
    partitions = words(request, "partition")
    named = named_jobs(request.query_params.get("job", ""))
    wanted = Filter(users=tuple(words(request, "user")), partitions=tuple(partitions), jobs=named)
    caller = api.caller(request)
    queued = sorted((*state.pending.values(), *state.holding.values()), key=lambda job: job.id) if multifactor else []

    def records(part: Sequence[Job]) -> list[dict[str, Any]]:
        known = [job for job in part if job.id in state.jobs]  # meanwhile some may have been forgotten
        seen = api.seen(caller, known)
        made = priority_records(state, matching(state, wanted, seen), api.now())
        return [record for record in made if not partitions or record["partition"] in partitions]

    beside = {"type": "priority/multifactor" if multifactor else "priority/basic", "weights": weights_record(state)}
    return await api.in_slices(
        request, Recipe("priorities", lambda: queued, records, lambda: {**beside, "now": api.now()})
    )


@routes.post("/v1/top", body="`jobs`: ids, the one that is to go first first.")
async def move_to_top(api: Context, request: Request) -> Response:
    """Let jobs go before the others of their user, account, partition and QOS, as `scontrol top`."""
    body, caller = await api.body(request), api.caller(request)
    names = body.get("jobs")
    if not isinstance(names, list) or not names:
        raise ProblemError(400, "jobs: expected a list of ids")
    targets = list(all_targets(map(str, names)))

    def decide(state: State, _: float) -> list[Event]:
        found = [job for target in targets for job in _waiting_first(find(state, target))]
        return top(state, caller, found)

    await api.cluster.do(api.cause(request), decide)
    return answer({"jobs": [target.job_id for target in targets]})


def _waiting_first(jobs: list[Job]) -> list[Job]:
    """Of an array the tasks that still wait; where none does, all, to be refused."""
    return [job for job in jobs if isinstance(job.phase, Pending)] or jobs
