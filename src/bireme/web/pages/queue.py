"""The queue: search and filter by anything, saved in the address; why each job waits."""

from __future__ import annotations

from typing import Any

from bireme.web.asking import Asking
from bireme.web.paging import JOBS, PLAN, Pages, Part

pages = Pages()

_FIELDS = (
    "job_id,array_job_id,array_task_id,name,user_name,account,partition,state,submit_time,start_time,expected_start,"
    "node_count,node_list,reason"
)


@pages.page("/queue", "queue.html", title="Queue", nav="queue", parts={"jobs": Part((JOBS, PLAN))})
async def queue(ask: Asking) -> dict[str, Any]:
    told = await ask.get("/v1/jobs", {"fields": _FIELDS})
    return {"jobs": told["jobs"][:200], "now": told["now"], "total": len(told["jobs"])}
