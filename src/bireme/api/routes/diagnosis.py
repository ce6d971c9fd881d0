"""`bireme diagnose`: what the daemon knows of a job's end (`api/looking_back/testimony`), and what it comes to.

The command reads the job's output itself, as its user, and asks for the evidence alone. Over HTTP, and for
`bireme why`, a process of the owner's reads it (`api/owner_reading`), and the judgement is made here.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bireme.agent.system.identity import Identity
from bireme.api import listing
from bireme.api.looking_back import known, testimony
from bireme.api.looking_back.testimony import Whose
from bireme.api.owner_reading import UnreadError, read_as_owner
from bireme.api.problems import answer
from bireme.api.routing import Context, Routes
from bireme.api.serving.peers import is_gone
from bireme.commands.scancel import label
from bireme.core.diagnosis.judging import judge, of_state
from bireme.core.diagnosis.model import Line
from bireme.core.model.refusals import Refusal, Why
from bireme.evidence.answers import answer_of, with_ends
from bireme.evidence.rulebook import Loaded, load
from bireme.evidence.searching import Searcher
from bireme.evidence.wire import clues_from, line_from

routes = Routes("diagnosis")

_FIELDS = (
    "job_id,array_job_id,array_task_id,array_tasks,het_job_id,het_offset,name,user_id,user_name,state,start_time,"
    "end_time,group_id,exit_code,exit_signal,cancelled_by,std_out,std_err,work_dir"
)
_PRIVATE = "what is known of a job's end quotes its output and names its files: it is for its owner and for operators"
_ORDER = ("COMPLETED", "PENDING", "RUNNING")
"""Of an array's records those come first that are none of these, then from the last to the first."""


@routes.get("/v1/jobs/{job}/evidence")
async def show_evidence(api: Context, request: Request) -> Response:
    """What is known of the end of a job's latest start, besides its output: for its owner and for operators.

    `lines` are what the journal, nodes and GPUs say, in the order of time (`source`: record, kernel or device);
    `outputs` the files that it wrote to; `absent` says what is not known and why. Of an array one record is told,
    a failed one if there is one; `left_out` says how many more there are.
    """
    whose, left_out = await _found(api, request)
    sources = await known.sources(api)
    told = await api.in_thread(request, partial(testimony.evidence_of, whose, sources, api.now()))
    return answer({**told, "rules": api.service.rules(), "left_out": left_out, "now": api.now()})


@routes.get("/v1/jobs/{job}/diagnosis")
async def show_diagnosis(api: Context, request: Request) -> Response:
    """Why a job's latest start ended as it did: cause, evidence, what to do and who; for its owner and for operators.

    `cause` is an id of the list in docs/diagnosis.md, `confidence` high, medium, low or none (`basis`: why).
    `evidence` quotes lines with their `file`, `line`, `time`, `node`, `rank` and `device`; `others` are the runners-up,
    `ruled_out` what it is not, `collect` what to keep the next time, `problems` what could not be read. Secrets are
    masked.
    """
    whose, left_out = await _found(api, request)
    told = await api.in_thread(request, partial(testimony.evidence_of, whose, await known.sources(api), api.now()))
    problems, read = [*told["absent"]], {}
    rules = api.service.rules()
    try:
        owner = await api.callers.ask(
            api.caller(request).uid, Identity.of_user, whose.uid, whose.record.get("group_id")
        )
        async with api.readers.held_by(whose.uid):  # the daemon asks for many owners, and none is to wait for another
            read = await read_as_owner(owner, told["outputs"], rules, lambda: is_gone(request.scope))
    except KeyError:
        problems.append("Its output is not read: this machine does not know its owner.")
    except UnreadError as error:
        problems.append(f"Its output is not read: {error}.")
    loaded = await api.in_thread(request, partial(load, Path(rules)))
    # Beside the loop, where a pattern of the site's that takes for ever can be ended.
    judged = await api.aside(request, partial(_judged, told, read, loaded, problems))
    about = {name: told[name] for name in ("job", "job_id", "name", "user", "state", "start", "end")}
    return answer({**about, **judged, "left_out": left_out, "now": api.now()})


def _judged(told: dict[str, Any], read: dict[str, Any], loaded: Loaded, problems: list[str]) -> dict[str, Any]:
    book = loaded.book()
    with Searcher(book) as searcher:
        of_daemon = [clue for line in told["lines"] for clue in searcher.clues(Line(**line))]
    clues = [*of_daemon, *clues_from(read.get("clues"), book)]
    ends = [line for each in read.get("ends") or () if (line := line_from(each, ("output",))) is not None]
    said = [text[:500] for text in read.get("problems") or () if isinstance(text, str)]
    diagnosis = of_state(with_ends(judge(clues, book.causes), ends), told["state"], book.causes)
    return answer_of(diagnosis, [*problems, *said[:50], *loaded.problems, *searcher.problems], told["job"])


async def _found(api: Context, request: Request) -> tuple[Whose, int]:
    jobs, seen = await known.found(api, request)
    if jobs:
        seen = list(listing.records_of(api.cluster.state, jobs, api.now(), _FIELDS.split(",")))
    seen.sort(key=lambda record: (_rank(record["state"]), -record["job_id"]))
    if not api.caller(request).may_change(seen[0]["user_id"]):
        raise Refusal(Why.ACCESS_DENIED, _PRIVATE)
    return _whose(seen[0]), len(seen) - 1


def _rank(state: str) -> int:
    """The smaller, the more there is to explain."""
    return len(_ORDER) - _ORDER.index(state) if state in _ORDER else 0


def _whose(record: dict[str, Any]) -> Whose:
    return Whose(
        job=label(record),
        job_id=record["job_id"],
        array_job_id=record.get("array_job_id"),
        array_task_id=record.get("array_task_id"),
        name=record.get("name") or "",
        user=record.get("user_name") or "",
        uid=record["user_id"],
        state=record["state"],
        std_out=record.get("std_out") or "",
        std_err=record.get("std_err") or "",
        work_dir=record.get("work_dir") or "",
        record=record,
    )
