"""Now: what the one screen shows that is open all day."""

from __future__ import annotations

from typing import Any

from bireme.web.asking import Asking
from bireme.web.paging import JOBS, NODES, Pages, Part

pages = Pages()


@pages.page("/now", "now.html", title="Now", nav="now", parts={"summary": Part((JOBS, NODES))})
async def now(ask: Asking) -> dict[str, Any]:
    nodes, jobs = await ask.together(
        ask.get("/v1/nodes", {"fields": "name,state"}), ask.get("/v1/jobs", {"fields": "job_id,state"})
    )
    running = sum(job["state"] == "RUNNING" for job in jobs["jobs"])
    return {"nodes": nodes["nodes"], "running": running, "waiting": sum(j["state"] == "PENDING" for j in jobs["jobs"])}
