"""`bireme.Client`: submit, wait, logs, cancel and query from Python.

Speaks sbatch's language: `client.submit("train.sh", nodes=2, gpus_per_node=8)` reads the script's #SBATCH lines and
takes each keyword as the option of that name. Everything else is a thin, typed layer over the API's JSON.
Not for several threads at once: one Client has one connection.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import shlex
import socket
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from bireme.client.services import Service
from bireme.client.transport import ApiError, BiremeError, Json, Params, Transport
from bireme.core.jobs.states import FINAL_STATES
from bireme.core.model.jobs import Owner
from bireme.slurm.options.batch import read_batch
from bireme.slurm.options.context import SubmitContext
from bireme.slurm.script import wrap
from bireme.slurm.serving.building import read_service
from bireme.slurm.serving.flags import BY_NAME
from bireme.slurm.serving.reading import read_line
from bireme.store.plain import to_plain

Record = dict[str, Any]
"""A JobRecord, StepRecord, NodeRecord or PartitionRecord: flat JSON; `slurm/records` says what each field means."""

_BATCH = 1_000
_LONG_POLL_S = 60.0
_LOOK_AGAIN_S = 0.2


class JobFailed(BiremeError):  # noqa: N818  # says what happened
    """A job that was waited for did not end well. `record` says how."""

    def __init__(self, record: Record) -> None:
        self.record = record
        code, number = record.get("exit_code"), record.get("exit_signal")
        super().__init__(f"job {record['job_id']} ended as {record['state']} (exit code {code}:{number})")


@dataclass(frozen=True, slots=True)
class JobHandle:
    """One job, by the id people type. Asking it asks the daemon."""

    client: Client
    id: str

    def record(self) -> Record:
        return self.client.job(self.id)

    @property
    def state(self) -> str:
        return str(self.record()["state"])

    def wait(self, timeout_s: float | None = None, *, check: bool = False) -> Record:
        return self.client.wait(self.id, timeout_s, check=check)

    def logs(self, *, follow: bool = False, stream: str = "out") -> Iterator[str]:
        """The lines of its output, each without its newline (`Client.logs`)."""
        return self.client.logs(self.id, follow=follow, stream=stream)

    def cancel(self, signal: int | None = None) -> None:
        self.client.cancel(self.id, signal=signal)

    def hold(self) -> None:
        self.client.hold(self.id)

    def release(self) -> None:
        self.client.release(self.id)

    def requeue(self, *, hold: bool = False) -> None:
        self.client.requeue(self.id, hold=hold)

    def checkpoint(self) -> None:
        self.client.checkpoint(self.id)

    def story(self) -> list[Record]:
        return self.client.story(self.id)

    def __str__(self) -> str:
        return self.id


class Client:
    """A connection to the cluster of `home` (default: BIREME_HOME, else this user's own)."""

    def __init__(self, home: str | None = None, *, patience_s: float = 0.0) -> None:
        self.transport = Transport(home, patience_s=patience_s, tool="bireme.Client")
        self._last: _Read | None = None
        """The last submission that was read: people submit in loops."""

    def close(self) -> None:
        self.transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- submitting ------------------------------------------------------------------------------------------------

    def submit(self, script: str | os.PathLike[str] | Sequence[str], /, *arguments: str, **options: Any) -> JobHandle:
        """Submits a script and returns once it is on disk.

        `script` is the path of a script, the text of one (it begins with `#!`), or a command as a list of words.
        Options are sbatch's: `nodes=2`, `gpus_per_node=8`, `time="1:00:00"`, `hold=True`, `env={...}` (in addition).
        """
        read = self._read(script, arguments, options)
        return self._handle(self.transport.post("/v1/jobs", read.with_key(_new_key()))["job_id"])

    def submit_many(self, jobs: Iterable[Any], /, **options: Any) -> list[JobHandle | ApiError]:
        """Submits many jobs in few requests, each as one group on disk: thousands a second.

        Each job is what `submit` takes first, or a pair of that and a mapping of its own options; `options` hold for
        all. One answer for each, in order: a handle, or the error with which it was refused.
        """
        made: list[JobHandle | ApiError] = []
        known: dict[Any, Record] = {}
        batch: list[Record] = []
        for job in jobs:
            script, own = job if _is_pair(job) else (job, {})
            batch.append({**self._known_body(known, script, {**options, **own}), "idempotency_key": _new_key()})
            if len(batch) == _BATCH:
                made += self._submit_batch(batch)
                batch = []
        return made + self._submit_batch(batch)

    def _submit_batch(self, batch: list[Record]) -> list[JobHandle | ApiError]:
        if not batch:
            return []
        # What all of them share travels once; the environment is by far the largest part.
        shared: Record = {name: batch[0][name] for name in ("script", "environment") if name in batch[0]}
        jobs = [{name: value for name, value in job.items() if shared.get(name) != value} for job in batch]
        try:
            answers = self.transport.post("/v1/jobs", {"jobs": jobs, **shared})["jobs"]
        except ApiError as error:
            if error.status != 413 or len(batch) == 1:
                raise
            middle = len(batch) // 2  # nothing of it was read
            return self._submit_batch(batch[:middle]) + self._submit_batch(batch[middle:])
        return [self._handle(one["job_id"]) if "job_id" in one else _as_error(one["error"]) for one in answers]

    def _known_body(self, known: dict[Any, Record], script: Any, options: Record) -> Record:
        """Options are read once for equal submissions."""
        try:
            key = (str(script), tuple(sorted(options.items())))
            if key not in known:
                known[key] = self._read(script, (), options).body
            return known[key]
        except TypeError:  # an option that cannot be compared
            return self._read(script, (), options).body

    def _read(self, script: Any, arguments: Sequence[str], options: Record) -> _Read:
        environment = {**_variables.now(), **options.get("env", {})}
        argv = [_option(name, value) for name, value in options.items() if name != "env" and _is_given(value)]
        name, text = _script(script)
        argv += [name, *arguments]
        context = _context(argv, environment, now=0.0)  # the time makes no other submission of the same words
        read_from = (argv, text, context)
        if self._last is not None and self._last.read_from == read_from:
            return self._last
        submission = read_batch(argv, text, replace(context, now=time.time()))
        parts = [
            {
                "spec": to_plain(request.spec, without=("owner",)),
                "environment": request.environment,
                "script": submission.script,
            }
            for request in submission.requests
        ]
        body: Record = parts[0] if len(parts) == 1 else {"het": parts}
        read = _Read(read_from, body)
        specs = [request.spec for request in submission.requests]
        timeless = all(spec.begin_at is None and spec.deadline_at is None for spec in specs)
        self._last = read if timeless else None  # `now+1hour` is another time the next time
        return read

    def _handle(self, job_id: int) -> JobHandle:
        return JobHandle(self, str(job_id))

    # -- services --------------------------------------------------------------------------------------------------

    def serve(self, script: str | os.PathLike[str] | Sequence[str], /, *arguments: str, **options: Any) -> Service:
        """Makes a service of a script, or the next revision of the one of this name; returns once it is on disk.

        `script` as in `submit`. Options are the flags of `bireme serve` and sbatch's: `name="chat"`, `replicas="0-4"`,
        `health="/health"`, `gpus=1`, `env={...}`; one that may be given several times takes a list. What was asked for
        and is not applied is told as a warning (`warnings`).
        """
        environment = {**os.environ, **options.get("env", {})}
        name, text = _script(script)
        flags = [word for option, value in options.items() if option != "env" for word in _flags(option, value)]
        line = read_line([*flags, "--", name, *arguments])
        asked = read_service(line, text, _context(line.sbatch, environment, time.time()))
        body: Record = {
            "spec": {**to_plain(asked.spec, without=("job",)), "job": to_plain(asked.spec.job, without=("owner",))},
            "environment": asked.environment,
            "script": asked.script,
            "idempotency_key": _new_key(),
        }
        made = self.transport.post("/v1/services", body)
        for notice in (*asked.notices, *made["notices"]):
            warnings.warn(notice, stacklevel=2)
        return Service(self, str(made["name"]))

    def service(self, name: str, *, must_exist: bool = True) -> Service:
        """The service of this name; ApiError where there is none. `must_exist=False`: also one that is gone, whose
        `events()` can still be asked for."""
        found = Service(self, name)
        if must_exist:
            found.record()
        return found

    def services(self, *, user: str | None = None) -> list[Record]:
        """All services, as `bireme services --json` prints them."""
        return self._list("/v1/services", "services", {"user": user})

    # -- waiting and reading ---------------------------------------------------------------------------------------

    def wait(self, job: str | int | JobHandle, timeout_s: float | None = None, *, check: bool = False) -> Record:
        """Waits until the job (every task of an array) ended; its record (of an array: of the worst task).

        Raises TimeoutError when time runs out, and with `check` JobFailed when it did not end as COMPLETED.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = _LONG_POLL_S if deadline is None else min(_LONG_POLL_S, deadline - time.monotonic())
            said = self.transport.get(f"/v1/jobs/{job}/wait", {"timeout": max(0.0, left)})
            if said["done"]:
                break
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"job {job} has not ended after {timeout_s} s")
        record: Record = max(said["jobs"], key=lambda one: (one["state"] != "COMPLETED", one["exit_code"] or 0))
        if check and record["state"] != "COMPLETED":
            raise JobFailed(record)
        return record

    def logs(self, job: str | int | JobHandle, *, follow: bool = False, stream: str = "out") -> Iterator[str]:
        """The lines a job wrote to its output (`stream="err"`: error) file, each without its newline.

        With `follow`, until it ended.
        """
        record = self.job(job)
        path = record["std_err" if stream == "err" else "std_out"]
        rest = ""
        position = 0
        while True:
            ended = record["state"] in FINAL_STATES  # looked at before reading, so that the last words are not missed
            text, position = _read_from(path, position)
            *lines, rest = (rest + text).split("\n")
            yield from lines
            if ended or not follow:
                break
            if not text:
                time.sleep(_LOOK_AGAIN_S)
            record = self.job(job)
        if rest:
            yield rest

    def job(self, job: str | int | JobHandle) -> Record:
        """One job's record, also of one that ended long ago."""
        try:
            records = self.transport.get(f"/v1/jobs/{job}")["jobs"]
        except ApiError as error:
            records = self.history(job=str(job)) if error.status == 404 else []
            if not records:
                raise
        return dict(records[0])

    def jobs(self, **filters: str | int | None) -> list[Record]:
        """Waiting, running and just ended jobs. Filters: user, account, partition, state, name, job, nodes, fields."""
        return self._list("/v1/jobs", "jobs", filters)

    def nodes(self, nodes: str | None = None) -> list[Record]:
        return self._list("/v1/nodes", "nodes", {"nodes": nodes})

    def partitions(self) -> list[Record]:
        return self._list("/v1/partitions", "partitions", {})

    def reservations(self) -> list[Record]:
        return self._list("/v1/reservations", "reservations", {})

    def history(self, **filters: str | int | float | None) -> list[Record]:
        """Finished and running jobs, as sacct sees them. Filters: start, end, user, job, state, steps=1, ..."""
        return self._list("/v1/history", "jobs", filters)

    def story(self, job: str | int | JobHandle) -> list[Record]:
        """Every event about one job, oldest first."""
        return self._list(f"/v1/jobs/{job}/story", "events", {})

    def why(self, job: str | int | JobHandle, *, suggestions: bool = True) -> list[Record]:
        """Why it waits and when it starts, why it runs where it does, or how it ended: what `bireme why` shows."""
        params = {} if suggestions else {"suggestions": 0}
        return list(self.transport.get(f"/v1/jobs/{job}/why", params)["jobs"])

    def diagnose(self, job: str | int | JobHandle) -> Record:
        """Why its latest start ended as it did: cause, evidence, what to do and who, as `bireme diagnose` says it."""
        return dict(self.transport.get(f"/v1/jobs/{job}/diagnosis"))

    def timeline(self, job: str | int | JobHandle, *, points: int = 600) -> list[Record]:
        """A job over time: lanes of spans, marks and curves over one axis, one timeline for each record of it."""
        return self._list(f"/v1/jobs/{job}/timeline", "timelines", {"points": points})

    def findings(self) -> list[Record]:
        """What is wrong with GPUs, nodes and jobs, gravest first, as `bireme findings --json` lists it."""
        return self._list("/v1/findings", "findings", {})

    def finding(self, number: int) -> Record:
        return dict(self.transport.get(f"/v1/findings/{number}")["finding"])

    def ping(self) -> Record:
        return dict(self.transport.get("/v1/ping"))

    def events(self, *, after: int | None = None) -> Iterator[Record]:
        """Events as they happen (after event number `after`, if given). Ends when the daemon does."""
        with self.transport.stream("/v1/events", {"after": after}) as stream:
            for line in stream.lines():
                if line.startswith("data: "):
                    yield json.loads(line[6:])

    def _list(self, path: str, key: str, params: Params) -> list[Record]:
        return list(self.transport.get(path, params)[key])

    # -- changing --------------------------------------------------------------------------------------------------

    def cancel(self, job: str | int | JobHandle, *, signal: int | None = None) -> None:
        self.transport.post(f"/v1/jobs/{job}/cancel", {"signal": signal})

    def hold(self, job: str | int | JobHandle) -> None:
        self.transport.post(f"/v1/jobs/{job}/hold")

    def release(self, job: str | int | JobHandle) -> None:
        self.transport.post(f"/v1/jobs/{job}/release")

    def requeue(self, job: str | int | JobHandle, *, hold: bool = False) -> None:
        self.transport.post(f"/v1/jobs/{job}/requeue", {"hold": hold})

    def checkpoint(self, job: str | int | JobHandle) -> None:
        """Says that a job's work is saved, as of now: what `bireme checkpoint` says inside a job."""
        self.transport.post(f"/v1/jobs/{job}/checkpoint")

    def healings(self, *, everything: bool = False) -> list[Record]:
        """What Bireme decided about findings, newest first, as `bireme healings --json` lists it."""
        return self._list("/v1/healings", "healings", {"all": "1"} if everything else {})

    def healing(self, number: int) -> Record:
        return dict(self.transport.get(f"/v1/healings/{number}")["healing"])

    def approve_healing(self, number: int, why: str = "") -> Record:
        """Has a suggestion carried out. For operators."""
        return dict(self.transport.post(f"/v1/healings/{number}/approve", {"why": why})["healing"])

    def refuse_healing(self, number: int, why: str = "") -> Record:
        """Says that a suggestion is not to be done. For operators."""
        return dict(self.transport.post(f"/v1/healings/{number}/refuse", {"why": why})["healing"])

    def undo_healing(self, number: int, why: str = "") -> Record:
        """Takes back what was done. For operators."""
        return dict(self.transport.post(f"/v1/healings/{number}/undo", {"why": why})["healing"])

    def fence(self, where: str, reason: str, *, last_too: bool = False) -> Record:
        """Takes a node (`n1`) or a GPU of one (`n1:gpu2`) out of service. For operators."""
        asked = {"fence": where, "reason": reason, "last_too": last_too}
        return dict(self.transport.post("/v1/healings", asked)["healing"])

    def dismiss_finding(self, number: int, why: str) -> Record:
        """Says that a finding is nothing: it stays silent until it is gone, or graver. For operators."""
        return dict(self.transport.post(f"/v1/findings/{number}/dismiss", {"why": why})["finding"])

    def close_finding(self, number: int, why: str = "") -> None:
        """Says that a finding is mended. For operators."""
        self.transport.post(f"/v1/findings/{number}/mended", {"why": why})

    def update(self, job: str | int | JobHandle, **changes: Any) -> None:
        """New values by the names of JobSpec and ResourceRequest: `update(42, time_limit_s=3600)`."""
        self.transport.post(f"/v1/jobs/{job}/update", {"changes": changes})


class _Variables:
    """The variables of this process as text: people submit in loops, and rarely change one in between.

    `os.environ` decodes every name and value that is read from it, which is a quarter of a submission's time here. So
    the bytes behind it are compared first, where it has them under the name that CPython gives them.
    """

    def __init__(self) -> None:
        self._bytes: dict[bytes, bytes] | None = None
        self._text: dict[str, str] = {}

    def now(self) -> Mapping[str, str]:
        found: dict[bytes, bytes] | None = getattr(os.environ, "_data", None)
        if found is None or found != self._bytes:
            self._bytes = None if found is None else dict(found)
            self._text = dict(os.environ)
        return self._text


_variables = _Variables()


class _Read:
    """A submission that was read, all that it was read from, and what is sent of it."""

    __slots__ = ("_json", "body", "read_from")

    def __init__(self, read_from: tuple[Any, ...], body: Record) -> None:
        self.read_from = read_from
        self.body = body
        self._json = json.dumps(body, separators=(",", ":")).encode()

    def with_key(self, key: str) -> Json:
        """With an idempotency key of its own; nothing else is written anew."""
        assert self.body
        return Json(b'%s,"idempotency_key":"%s"}' % (self._json[:-1], key.encode()))


def _script(script: Any) -> tuple[str, bytes]:
    """(name, content) of what is to be run."""
    if isinstance(script, (list, tuple)):
        return script[0], wrap(shlex.join(script)).encode("utf-8", "surrogateescape")
    if isinstance(script, str) and script.startswith("#!"):
        return "script", script.encode("utf-8", "surrogateescape")
    path = os.fspath(script)
    with open(path, "rb") as file:
        return path, file.read()


def _is_given(value: Any) -> bool:
    return value is not None and value is not False


def _flags(name: str, value: Any) -> list[str]:
    """As `_option`; of a flag that may be given several times, one for each."""
    flag = BY_NAME.get(name.replace("_", "-"))
    several = flag is not None and flag.many and isinstance(value, (list, tuple))
    return [_option(name, each) for each in (value if several else [value]) if _is_given(each)]


def _option(name: str, value: Any) -> str:
    """`gpus_per_node=8` is `--gpus-per-node=8`, `hold=True` is `--hold`."""
    flag = "--" + name.replace("_", "-")
    if value is True:
        return flag
    if isinstance(value, (list, tuple)):
        value = ",".join(map(str, value))
    return f"{flag}={value}"


def _context(argv: Sequence[str], environment: Mapping[str, str], now: float) -> SubmitContext:
    umask = os.umask(0o022)
    os.umask(umask)
    return SubmitContext(
        owner=_owner(),
        cwd=os.getcwd(),
        umask=umask,
        submit_host=socket.gethostname().partition(".")[0],
        environment=environment,
        now=now,
        utc_offset=_utc_offset,
        submit_line=shlex.join(["sbatch", *argv]),
    )


def _utc_offset(at: float) -> float:
    return float(time.localtime(at).tm_gmtoff)


def _owner() -> Owner:
    return _owner_of(os.getuid(), os.getgid())


@cache
def _owner_of(uid: int, gid: int) -> Owner:
    """Remembered: the user database may be far away, and the daemon asks its own for whom a job is."""
    return Owner(uid=uid, gid=gid, user=_name(pwd.getpwuid, uid), group=_name(grp.getgrgid, gid))


def _name(look_up: Callable[[int], Any], number: int) -> str:
    try:
        return str(look_up(number)[0])
    except KeyError:
        return str(number)


def _new_key() -> str:
    return os.urandom(12).hex()


def _is_pair(job: Any) -> bool:
    return isinstance(job, tuple) and len(job) == 2 and isinstance(job[1], Mapping)


def _as_error(error: Record) -> ApiError:
    code, number, hint = error.get("code"), error.get("slurm_errno"), error.get("hint", "")
    return ApiError(error["message"], status=400, code=code, slurm_errno=number, hint=hint)


def _read_from(path: str, position: int) -> tuple[str, int]:
    try:
        with open(path, "rb") as file:
            file.seek(position)
            data = file.read()
    except FileNotFoundError:
        return "", position
    return data.decode("utf-8", "replace"), position + len(data)
