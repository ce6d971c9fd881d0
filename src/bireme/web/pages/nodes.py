"""Nodes and their GPUs: all of them in a table, and one with its history, jobs, findings and fences.

Curves are asked for by the page's script (`node.js`). Invariant: what is out of service is told with the healing that
put it there, so that it can be taken back where it is seen.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from bireme.web.asking import Asking
from bireme.web.paging import FAULTS, JOBS, MEASURED, NODES, Pages, Part, Values
from bireme.web.upstream import RefusedError

pages = Pages()
PAGE = 200
_GRAVITIES = ("broken", "degraded", "note")
OFF = "Nothing is measured here: telemetry.gather is off."
_SHOWN = (
    "name,state,flags,partitions,gres,tres,tres_allocated,cpus,cpus_allocated,memory_mib,memory_allocated_mib,jobs,"
    "reason"
)
_PAST_S = 2 * 86_400.0
_MOST_PAST = 50
_PAST = "job_id,array_job_id,array_task_id,name,user_name,state,start_time,end_time,elapsed_s,node_list,exit_code"
_NUMBERS = re.compile(r"(\d+)")
_POOL = re.compile(r"(?:^|,)gpu:(?:(?P<model>[^:,(]+):)?(?P<count>\d{1,4})")
_THIS_MACHINE = ("localhost", "127.0.0.1", "")


@pages.page(
    "/nodes",
    "nodes.html",
    title="Nodes",
    nav="nodes",
    parts={"table": Part((NODES, JOBS, FAULTS, MEASURED), every_s=5.0)},
)
async def nodes(asking: Asking) -> Values:
    told, measured, found = await asking.together(
        asking.get("/v1/nodes", {"fields": _SHOWN}), _measured(asking), asking.get_or({"findings": []}, "/v1/findings")
    )
    by_node = _by_node(measured["gpus"])
    findings = _by_node(each for each in found["findings"] if each["node"])
    rows = [_row(each, by_node[each["name"]], findings[each["name"]]) for each in told["nodes"]]
    wanted, state = asking.query.get("q", "").strip().lower(), asking.query.get("state", "")
    shown = [row for row in rows if _matches(row, wanted) and (not state or state in (row["state"], *row["flags"]))]
    shown.sort(key=lambda row: (-row["gravity"], _natural(row["name"])))
    page = max(0, _whole(asking.query.get("page", "")))
    return {
        "rows": shown[page * PAGE : (page + 1) * PAGE],
        "found": len(shown),
        "all": len(rows),
        "page": page,
        "page_size": PAGE,
        "query": {"q": asking.query.get("q", ""), "state": state},
        "states": sorted({row["state"] for row in rows}),
    }


async def _measured(asking: Asking) -> Any:
    return await asking.get_or({"gpus": [], "nodes": [], "problem": OFF}, "/v1/telemetry/now")


def _by_node(records: Iterable[Mapping[str, Any]]) -> defaultdict[str, list[Mapping[str, Any]]]:
    found: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for each in records:
        found[each["node"]].append(each)
    return found


def _row(node: Mapping[str, Any], gpus: list[Mapping[str, Any]], findings: list[Mapping[str, Any]]) -> dict[str, Any]:
    uses = [use for gpu in gpus if (use := use_of(gpu["values"])[0]) is not None]
    gravity = max((len(_GRAVITIES) - _GRAVITIES.index(each["gravity"]) for each in findings), default=0)
    return {
        **node,
        "gpus": int(node["tres"].get("gres/gpu", 0)),
        "gpus_used": int(node["tres_allocated"].get("gres/gpu", 0)),
        "use": sum(uses) / len(uses) if uses else None,
        "findings": findings,
        "gravity": gravity,
    }


def use_of(values: Mapping[str, float]) -> tuple[float | None, str]:
    """How much of a GPU is in use, by the best that is measured, and what that figure is called."""
    for name, word in (("gpu_sm_active", "SM"), ("gpu_engine_active", "engine"), ("gpu_util", "util")):
        if name in values:
            return values[name], word
    return None, ""


def _matches(row: Mapping[str, Any], wanted: str) -> bool:
    texts = (row["name"], row["state"], *row["flags"], *row["partitions"], row["gres"], row["reason"] or "")
    return not wanted or all(any(word in text.lower() for text in texts) for word in wanted.split())


def _natural(name: str) -> list[tuple[int, str]]:
    """n2 before n10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in _NUMBERS.split(name)]


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0


@pages.page(
    "/nodes/{node}",
    "node.html",
    title="Node",
    nav="nodes",
    parts={
        "facts": Part((NODES, JOBS, FAULTS)),
        "gpus": Part((NODES, JOBS, FAULTS, MEASURED), every_s=5.0),
        "jobs": Part((JOBS,), every_s=3.0),
        "faults": Part((FAULTS, NODES)),
    },
)
async def node(asking: Asking) -> Values:
    name = asking.path["node"]
    told, measured, found, healed, running, past, story = await asking.together(
        asking.get("/v1/nodes", {"nodes": name}),
        _measured(asking),
        asking.get_or({"findings": []}, "/v1/findings"),
        asking.get_or({"healings": [], "fences": []}, "/v1/healings", {"all": "1"}),
        asking.get("/v1/jobs", {"nodes": name}),
        _past_jobs(asking, name) if asking.wants("jobs") else _none(),
        asking.get_or({"events": []}, f"/v1/nodes/{name}/events", {"limit": "50"}),
    )
    if not told["nodes"]:
        raise RefusedError(403, json.dumps({"error": {"message": "Nodes are private on this cluster"}}).encode())
    fences = [each for each in healed["fences"] if each["node"] == name]
    findings = [each for each in found["findings"] if each["node"] == name]
    gpus = [each for each in measured["gpus"] if each["node"] == name] or configured_gpus(told["nodes"][0])
    jobs = _by_gpu(running["jobs"], name)
    return {
        "title": name,
        "machine": "" if measured["problem"] == OFF else _machine(name, measured["nodes"], told["nodes"][0]),
        "node": told["nodes"][0],
        "now": told["now"],
        "gpus": [_gpu(each, fences, findings, jobs) for each in sorted(gpus, key=lambda each: each["index"] or 0)],
        "unmeasured": measured["problem"],
        "fences": fences,
        "node_fence": next((each for each in fences if each["gpu"] is None), None),
        "findings": findings,
        "healings": [each for each in healed["healings"] if each["node"] == name][:20],
        "running": running["jobs"],
        "past": past,
        "story": [{"at": each["at"], "text": said_of_node(each), "cause": each["cause"]} for each in story["events"]],
    }


async def _none() -> list[Any]:
    return []


async def _past_jobs(asking: Asking, name: str) -> list[Mapping[str, Any]]:
    """The latest that ended there."""
    now = (await asking.get("/v1/ping"))["now"]
    start = str(int((now - _PAST_S) // 60 * 60))
    told = await asking.get_or({"jobs": []}, "/v1/history", {"start": start, "nodes": name, "fields": _PAST})
    ended = [each for each in told["jobs"] if each.get("end_time") and each["state"] not in ("RUNNING", "PENDING")]
    return sorted(ended, key=lambda each: -each["end_time"])[:_MOST_PAST]


def configured_gpus(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What gres.conf gives a node of whose GPUs nobody tells: a rehearsal's, another machine's without a gatherer."""
    found: list[dict[str, Any]] = []
    for pool in _POOL.finditer(node["gres"]):
        for _ in range(int(pool["count"])):
            gpu = {"index": len(found), "uuid": "", "model": pool["model"] or "", "memory_mib": 0, "profile": ""}
            found.append({**gpu, "job_ids": [], "values": {}})
    return found


def _by_gpu(jobs: Iterable[Mapping[str, Any]], name: str) -> defaultdict[int, list[int]]:
    """Jobs by the number of the GPU that they were given."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for job in jobs:
        shares = (share for share in job.get("shares") or () if share["node"] == name)
        for index in {index for share in shares for gres in share["gres"] if gres["name"] == "gpu"
                      for index in gres.get("indices") or ()}:  # fmt: skip
            found[index].append(job["job_id"])
    return found


def _machine(name: str, measured: list[Mapping[str, Any]], node: Mapping[str, Any]) -> str:
    """Whose figures are shown: several virtual nodes of one machine have those of the machine."""
    known: list[str] = [each["node"] for each in measured]
    return known[0] if len(known) == 1 and name not in known and node["hostname"] in _THIS_MACHINE else name


def _gpu(
    gpu: Mapping[str, Any], fences: list[Any], findings: list[Any], jobs: Mapping[int, list[int]]
) -> dict[str, Any]:
    use, word = use_of(gpu["values"])
    return {
        **gpu,
        "job_ids": gpu["job_ids"] or jobs.get(gpu["index"], []),
        "use": use,
        "use_is": word,
        "fence": next((each for each in fences if each["gpu"] is not None and each["gpu"] == gpu["index"]), None),
        "findings": [each for each in findings if each["gpu"] == gpu["index"]],
    }


_OF_NODE = {
    "NodeRegistered": "its agent answered",
    "NodeLost": "it was lost",
    "NodeClosed": "its cluster closed it",
}


def said_of_node(event: Mapping[str, Any]) -> str:
    """An event of a node in words."""
    data = event["data"]
    if event["kind"] == "NodeUpdated":
        drained = data.get("drained")
        words = ["drained" if drained else "back in service"] if drained is not None else []
        words += [data["health"]] if data.get("health") else []
        note = data.get("note")
        return ", ".join(words or ["changed"]) + (f": {note}" if note else "")
    if event["kind"] == "NodeClosed" and not data.get("why"):
        return "its cluster opened it again"
    why, kind = data.get("reason") or data.get("why") or "", str(event["kind"])
    return _OF_NODE.get(kind, kind) + (f": {why}" if why else "")
