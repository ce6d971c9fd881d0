"""`POST /v1/explain`: what Bireme understood of a script, line by line and in all, and the request that submits it.

As `bireme explain` does it in the process of who asks, for who has only a browser: the script comes as text, the folder
and the arguments are said beside it. The answer's `submission` is what `sbatch` (or `bireme serve`) would send; to send
it is another request. Nothing is stored and no file is read.

Invariants: what would take long (ranges of many thousands, long scripts) is refused; the script's text comes back as it
is, for its reader to show as text.
"""

from __future__ import annotations

import pwd
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bireme.api.problems import ProblemError, answer
from bireme.api.routes.commands import MOST_NUMBERED, OPTION_LINES, numbers_in
from bireme.api.routing import Context, Routes
from bireme.commands.submitting.caller import local_utc_offset, plain, plain_spec
from bireme.core.model.jobs import Owner
from bireme.core.model.refusals import Caller
from bireme.slurm.annotated import annotate, asks_for_service
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.options.batch import read_batch
from bireme.slurm.options.context import SubmitContext
from bireme.slurm.serving.building import read_service
from bireme.slurm.serving.reading import read_line
from bireme.slurm.serving.understood import describe_service
from bireme.slurm.understood import Understood, as_json, describe

routes = Routes("jobs")
MOST_SCRIPT = 256 * 1024
"""Bytes: what people read line by line."""
_LONGEST_NAME = 200
_UMASK = 0o022
_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a page has of a submission."""

    script: str
    name: str
    folder: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]


@routes.post(
    "/v1/explain",
    body="`script` (text), `name` (of its file), `folder` (where it runs; default: the caller's home), `arguments` (a "
    "list: sbatch's options before the script's name are not among them).",
)
async def explain_script(api: Context, request: Request) -> Response:
    """Say what a batch script, or a service's, asks for.

    `lines`: each with its number, text, `kind` (interpreter, options, comment, late, command, blank, wrong), what it
    `says` and its `options` with what each means. `error`: why the script cannot be submitted, empty where it can; then
    `jobs` (sections of rows, as `bireme explain` prints them), `notices`, and `submission`: where to POST it (`path`)
    and what (`body`, to which an idempotency_key may be added).
    """
    caller, body = api.caller(request), await api.body(request)
    home, environment = await api.callers.ask(caller.uid, _login, caller)
    asked = _read(body, home, environment)
    _keep_to_bounds(asked)
    return answer(await api.in_thread(request, _told, asked, caller, api.now()))


def _login(caller: Caller) -> tuple[str, dict[str, str]]:
    """The home of who asks, and the variables that a login has."""
    try:
        entry = pwd.getpwuid(caller.uid)
    except KeyError:
        return "/", {"PATH": _PATH}
    named = {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name, "SHELL": entry.pw_shell}
    return entry.pw_dir, {**named, "PATH": _PATH, "LANG": "C.UTF-8"}


def _read(body: dict[str, Any], home: str, environment: Mapping[str, str]) -> _Asked:
    script, name, folder = body.get("script"), body.get("name") or "script.sh", body.get("folder") or home
    arguments = body.get("arguments") or []
    if not isinstance(script, str):
        raise ProblemError(400, "script: expected text")
    if len(script) > MOST_SCRIPT:
        raise ProblemError(413, f"the script has more than {MOST_SCRIPT // 1024} KiB: submit it with sbatch")
    if not isinstance(name, str) or not name.isprintable() or len(name) > _LONGEST_NAME or name.startswith("-"):
        raise ProblemError(400, "name: the name of the script's file")
    if not isinstance(folder, str) or not folder.startswith("/") or "\0" in folder:
        raise ProblemError(400, "folder: where the job runs, from / on")
    if not isinstance(arguments, list) or not all(isinstance(each, str) for each in arguments):
        raise ProblemError(400, "arguments: expected a list of texts")
    return _Asked(script, name.rpartition("/")[2] or name, folder, tuple(arguments), environment)


def _keep_to_bounds(asked: _Asked) -> None:
    lines = OPTION_LINES.findall(asked.script.encode("utf-8", "surrogatepass"))
    if sum(numbers_in(line.decode("latin-1")) for line in lines) > MOST_NUMBERED:
        raise ProblemError(413, f"its ranges stand for more than {MOST_NUMBERED} tasks or hosts: submit it with sbatch")


def _told(asked: _Asked, caller: Caller, now: float) -> dict[str, Any]:
    """In a thread."""
    told: dict[str, Any] = {"lines": [asdict(line) for line in annotate(asked.script)], "folder": asked.folder}
    context = SubmitContext(
        owner=Owner(uid=caller.uid, gid=caller.gid, user=caller.user),
        cwd=asked.folder,
        umask=_UMASK,
        environment=asked.environment,
        now=now,
        utc_offset=local_utc_offset,
        submit_line=" ".join(["sbatch", asked.name, *asked.arguments]),
    )
    words = [asked.name, *asked.arguments]
    script = asked.script.encode("utf-8", "surrogatepass")
    try:
        read = _service if asks_for_service(asked.script) else _batch
        return {**told, "error": "", **read(words, script, context)}
    except SlurmSyntaxError as error:
        return {**told, "error": str(error), "jobs": [], "notices": [], "submission": None}


def _batch(words: Sequence[str], script: bytes, context: SubmitContext) -> dict[str, Any]:
    batch = read_batch(words, script, context)
    parts = [
        {"spec": plain_spec(request.spec), "script": batch.script, "environment": dict(request.environment)}
        for request in batch.requests
    ]
    jobs = [describe(request.spec, request.warnings) for request in batch.requests]
    body = parts[0] if len(parts) == 1 else {"het": parts}
    return _understood(jobs, batch.notices, {"path": "/v1/jobs", "body": body}, service="")


def _service(words: Sequence[str], script: bytes, context: SubmitContext) -> dict[str, Any]:
    asked = read_service(read_line(words), script, context)
    spec = plain(asked.spec)
    spec["job"].pop("owner", None)
    body = {"spec": spec, "script": asked.script, "environment": dict(asked.environment)}
    job = replace(describe(asked.spec.job), sections=describe_service(asked.spec))
    return _understood([job], asked.notices, {"path": "/v1/services", "body": body}, service=asked.spec.name)


def _understood(
    jobs: Sequence[Understood], notices: Sequence[str], submission: dict[str, Any], *, service: str
) -> dict[str, Any]:
    return {
        "jobs": [{**as_json(job), "sections": [asdict(section) for section in job.sections]} for job in jobs],
        "notices": list(notices),
        "service": service,
        "submission": submission,
    }
