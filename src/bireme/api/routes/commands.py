"""`POST /v1/commands/{command}`: runs one of Slurm's commands for who asks, and answers with its text and exit code.

What the thin commands send and get is in `commands/parcels.py`; the commands themselves are in `commands/`. Each runs
in a thread (`errands.py`); what it asks of the cluster goes through this application's own routes, as the caller's.

Invariants: a command sees and changes what its caller could by asking the routes, in the caller's turns: there is no
other way from here to the cluster. No file is opened and no variable read that the caller names. What would take too
much is sent back to run near (`NearError`), before anything is changed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Coroutine, Hashable, Mapping
from concurrent.futures import wait
from functools import partial
from itertools import chain
from typing import Any, NoReturn, TypeVar, cast
from urllib.parse import urlencode

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Scope

from bireme.api.errands import GoneError, Stay, Told
from bireme.api.problems import MOST_BESIDE, ProblemError, read_body
from bireme.api.routing import OUT_OF_DATE, Context, Routes, flag
from bireme.api.serving.peers import SCOPE_KEY, TRANSPORT_KEY, WITHIN_KEY, Callers, group_id, is_gone, user_id
from bireme.api.serving.unread import UNREFUSED_KEY
from bireme.commands import (
    parcels,
    sacct,
    sbatch,
    scancel,
    scontrol,
    seff,
    shown,
    sinfo,
    sprio,
    squeue,
    sshare,
    sstat,
)
from bireme.commands.refused import ApiError, refusal_in
from bireme.commands.surroundings import OWN_COMMAND, NearError, Port, surrounded_by
from bireme.core.model.refusals import Caller
from bireme.slurm.formats.visible import visible_lines
from bireme.store.codec import dumps, loads

log = logging.getLogger(__name__)
routes = Routes("commands")

COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "sbatch": sbatch.main,
    "scancel": scancel.main,
    "squeue": squeue.main,
    "sinfo": sinfo.main,
    "sacct": sacct.main,
    "seff": seff.main,
    "sprio": sprio.main,
    "sshare": sshare.main,
    "sstat": sstat.main,
    "scontrol": scontrol.main,
}
Result = TypeVar("Result")
LOOKS = frozenset({"squeue", "sinfo"})
"""Commands that many ask for at the same time, and that change nothing."""
MOST_SAID = 256 * 1024
"""Bytes of a request, but for submissions, which bring files."""
MOST_WORDS = 16 * 1024
"""Bytes of words, of variables that are read, and of lines with options in a script."""
MOST_ANSWER = 16 << 20
"""Bytes of what the cluster answers to a command's questions, together."""
MOST_OUTPUT = 16 << 20
MOST_NUMBERED = 20_000
"""Tasks or hosts that all ranges in them may stand for."""
_LOOK_S = 0.25
"""Between two looks at whether a command that waits may go on."""
_RANGE = re.compile(r"([0-9]+)-([0-9]+)")
OPTION_LINES = re.compile(rb"^#[A-Z]+ .*", re.MULTILINE)


@routes.post(
    "/v1/commands/{command}",
    body="Its words and variables, in parts (`commands/parcels.py`).",
    waits="The process that asks can wait for a job by itself (`sbatch --wait`), and is told for which.",
)
async def run_command(api: Context, request: Request) -> Response:
    """Run one of Slurm's commands and answer with what it prints and its exit code, in parts."""
    command = COMMANDS.get(request.path_params["command"])
    if command is None:
        raise ProblemError(404, "there is no such command")
    data = await read_body(request, _most_said(api, command), api.bodies)
    caller = api.caller(request)
    private = bool(api.cluster.state.config.words("PrivateData"))
    try:
        errand = Errand(request, caller, parcels.unpack(data), asyncio.get_running_loop())
    except parcels.BadParcelError as error:
        raise ProblemError(400, str(error)) from error
    work, gone = partial(errand.run, command), partial(is_gone, request.scope)
    with api.bodies.held(caller.uid, len(data)):  # it may wait for its turn
        try:
            if errand.command in LOOKS:
                told = await api.errands.look(errand.question(private), caller.uid, work, gone)
            else:
                told = await api.errands.run(caller.uid, work, gone)
        except GoneError:
            raise ClientDisconnect from None
    request.scope[UNREFUSED_KEY] = True
    return _answer(told.content)


def _most_said(api: Context, command: Callable[[list[str]], int]) -> int:
    """Bytes of a request; a submission brings its script, and files and variables of its own."""
    if command is not sbatch.main:
        return MOST_SAID
    return min(api.service.max_body_bytes, api.cluster.state.config.settings.max_script_bytes + MOST_BESIDE)


def _answer(content: bytes) -> Response:
    return Response(content, media_type="application/octet-stream")


class WantedError(Exception):
    """The command needs a file that only its user may read. `places`: as the user's process is told them."""

    def __init__(self, places: bytes) -> None:
        super().__init__("a file is wanted")
        self.places = places


class Errand:
    """One command of one caller: `commands.surroundings.Surroundings` within the daemon."""

    def __init__(
        self, request: Request, caller: Caller, parts: list[tuple[str, bytes]], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.command: str = request.path_params["command"]
        self._caller = caller
        self._personal = False
        self.host, self.folder, self.key = "", "/", ""
        self.umask, self.nice = 0o022, 0
        self.argv: list[str] = []
        self.environment: Mapping[str, str] = {}
        self._files: dict[bytes, bytes | int] = {}
        """By places: what the file holds, or the number of the error."""
        self._request = request
        self._loop = loop
        self._said: list[bytes] = []
        self._size = 0
        self._changed = False
        self._stay = Stay(partial(is_gone, request.scope))
        self.leaves_waiting = flag(request, parcels.WAITS)
        self._read(parts)

    def _read(self, parts: list[tuple[str, bytes]]) -> None:
        variables: dict[str, str] = {}
        for letter, content in parts:
            if letter in (parcels.FILE, parcels.MISSING):
                places, said = parcels.unpack_file(content)
                self._files[places] = said if letter == parcels.FILE else _number(said)
                continue
            text = content.decode("utf-8", "surrogateescape")
            if letter == parcels.ARGUMENT:
                self.argv.append(text)
            elif letter == parcels.VARIABLE:
                name, _, variables[name] = text.partition("=")
            elif letter == parcels.HOST:
                self.host = text.partition(".")[0]
            elif letter == parcels.FOLDER:
                self.folder = text
            elif letter == parcels.UMASK:
                self.umask = _number(content) & 0o777
            elif letter == parcels.NICE:
                self.nice = _number(content)
            elif letter == parcels.KEY:
                self.key = text
            else:
                raise parcels.BadParcelError(f"there are no parts {letter!r}")
        self.environment = variables

    def keep_to_bounds(self) -> None:
        """Raises NearError for what would be large, and where local time is another than here.

        In a thread: there may be a long script to look through.
        """
        read = ("SLURM_", f"{self.command.upper()}_")
        words = [*self.argv, *(value for name, value in self.environment.items() if name.startswith(read))]
        scripts = [content for content in self._files.values() if isinstance(content, bytes)]
        lines = (line[0].decode("latin-1") for script in scripts for line in OPTION_LINES.finditer(script))
        size = numbered = 0
        for word in chain(words, lines):
            size += len(word)
            self.keep_small(size, MOST_WORDS)
            numbered += numbers_in(word)
        self.keep_small(numbered, MOST_NUMBERED)
        if self.environment.get("TZ") != os.environ.get("TZ"):
            raise NearError

    def question(self, private: bool) -> Hashable:
        """What the command asks, equal for all who are told the same. `private`: something is, so that each hears his
        own."""
        variables = tuple(sorted(self.environment.items()))
        return self.command, tuple(self.argv), variables, self.host, self._caller.uid if private else None

    def run(self, command: Callable[[list[str]], int], stay: Stay) -> Told:
        """In a thread. What the command said, in parts."""
        self._stay = stay
        stay.begin()
        try:
            return Told(self._run(command), self._personal)
        finally:
            self._files.clear()  # whatever else still knows this errand
            self._said.clear()

    def _run(self, command: Callable[[list[str]], int]) -> bytes:
        try:
            self.keep_to_bounds()
            with surrounded_by(self):
                code = command(self.argv)
        except WantedError as wanted:
            return parcels.pack(parcels.WANTED, wanted.places)
        except NearError:
            if not self._changed:
                return parcels.pack(parcels.NEAR, b"")
            code = self._failed("there is more to say than fits")
        except GoneError:
            raise
        except Exception:
            log.exception("%s failed", self.command)  # not its words: they are as long as users like, and theirs
            self._personal = True  # what went wrong is not told to others
            if not self._changed:
                return parcels.pack(parcels.NEAR, b"")
            code = self._failed("the daemon failed to answer; its log says why")
        return b"".join([*self._said, parcels.pack(parcels.EXIT, str(code).encode())])

    def _failed(self, why: str) -> int:
        self._said.append(parcels.pack(parcels.ERROR, f"{self.command}: error: {why}\n".encode()))
        return 1

    # -- what surrounds it ------------------------------------------------------------------------------------------

    @property
    def uid(self) -> int:
        self._personal = True
        return self._caller.uid

    @property
    def gid(self) -> int:
        self._personal = True
        return self._caller.gid

    @property
    def user(self) -> str:
        self._personal = True
        return self._caller.user

    def write(self, text: str) -> None:
        self._say(parcels.OUTPUT, visible_lines(text).encode("utf-8", shown.SHOWN))

    def write_bytes(self, data: bytes) -> None:
        self._say(parcels.OUTPUT, data)

    def tell(self, text: str) -> None:
        self._say(parcels.ERROR, visible_lines(f"{text}\n").encode("utf-8", shown.SHOWN))

    def remark(self, line: str, end: str) -> None:
        self._say(parcels.ERROR, (visible_lines(line) + end).encode("utf-8", shown.SHOWN))

    def read_file(self, *places: str) -> bytes:
        """What the user's process has sent of it."""
        named = b"\0".join(place.encode("utf-8", "surrogateescape") for place in places)
        content = self._files.get(named)
        if content is None:
            raise WantedError(named)
        if isinstance(content, int):
            raise OSError(content, os.strerror(content))
        return content

    def _say(self, letter: str, data: bytes) -> None:
        self.go_on()
        self._size += len(data)
        self.keep_small(self._size, MOST_OUTPUT)
        self._said.append(parcels.pack(letter, data))

    def user_id(self, name: str) -> int | None:
        return self.wait_for(self._callers.ask(self._caller.uid, user_id, name))

    def group_id(self, name: str) -> int | None:
        return self.wait_for(self._callers.ask(self._caller.uid, group_id, name))

    @property
    def _callers(self) -> Callers:
        callers: Callers = self._request.app.state.context.callers
        return callers

    def flush(self) -> None:
        """Nothing waits: all is sent together."""

    def abandon_output(self) -> None:
        """Who does not read is not seen from here."""

    def port(self, *, may_be_slurms: bool = False, acts: bool = False) -> Questions:
        return Questions(self, tells_age=not acts)

    def become_slurms_own(self, port: Port) -> NoReturn:
        raise NearError

    def only_near(self) -> None:
        raise NearError

    def leave_waiting(self, job: str) -> None:
        self._said.append(parcels.pack(parcels.AWAITED, job.encode()))

    def keep_small(self, count: int, most: int) -> None:
        if count > most:
            raise NearError

    def go_on(self) -> None:
        if not self._changed:  # else it is seen to its end
            self._stay.go_on()

    # -- its questions ----------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, params: Mapping[str, Any] | None, body: bytes) -> Asked:
        """From the command's thread: the answer of this application's own route."""
        asked = Asked(self._request, method, path, params, body, self.command, self._stay.is_over)
        had_changed = self._changed
        self._changed = had_changed or method == "POST"
        self.wait_for(asked.put_to(self._request.app))
        if 400 <= asked.status < 500:
            self._changed = had_changed
        if asked.too_much:
            raise NearError
        if not asked.complete:
            raise GoneError
        return asked

    def wait_for(self, work: Coroutine[Any, Any, Result]) -> Result:
        """From the command's thread: what the loop does for it; given up when the command may not go on."""
        under_way = asyncio.run_coroutine_threadsafe(work, self._loop)
        while not wait([under_way], _LOOK_S).done:
            try:
                self.go_on()
            except Exception:
                under_way.cancel()
                raise
        return under_way.result()


class Questions:
    """`commands.surroundings.Port` of an errand."""

    patience_s, asked_before = 0.0, False

    def __init__(self, errand: Errand, *, tells_age: bool) -> None:
        """`tells_age`: whether it says how old what is shown of another scheduler is."""
        self._errand = errand
        self._tells_age = tells_age
        self._told: set[str] = set()

    def get(self, path: str, params: Mapping[str, Any] | None = None, *, timeout_s: float | None = None) -> Any:
        return loads(self.get_bytes(path, params))

    def get_bytes(self, path: str, params: Mapping[str, Any] | None = None) -> bytes:
        return self._answer(self._errand.ask("GET", path, params, b""))

    def post(
        self, path: str, body: Any = None, params: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> Any:
        return loads(self._answer(self._errand.ask("POST", path, params, dumps({} if body is None else body))))

    def _answer(self, asked: Asked) -> bytes:
        if asked.status >= 400:
            try:
                content = loads(asked.body)
            except ValueError:
                content = None
            raise _told_as(refusal_in(asked.status, content))
        remark = asked.headers.get(OUT_OF_DATE, "")
        if remark and self._tells_age and remark not in self._told:
            self._told.add(remark)
            self._errand.tell(f"{self._errand.command}: {remark}")
        return asked.body


def _told_as(refusal: ApiError) -> Exception:
    """As which the command is told of it. Not raised here: a frame that is in its own error's trace is a cycle."""
    if refusal.code == OWN_COMMAND:  # nothing was done: the process becomes Slurm's own command
        return NearError()
    return refusal


class Asked:
    """A request that comes from within: put to the application as if its caller had sent it."""

    def __init__(
        self,
        outer: Request,
        method: str,
        path: str,
        params: Mapping[str, Any] | None,
        body: bytes,
        agent: str,
        is_over: Callable[[], bool],
    ) -> None:
        """`is_over`: whether the answer is for nobody any more."""
        given = [(name, str(value)) for name, value in (params or {}).items() if value is not None]
        self.status = 0
        self.headers: dict[str, str] = {}
        self.too_much = False
        self.complete = False
        """Whether the whole answer came."""
        self._pieces: list[bytes] = []
        self._size = 0
        self._sent: bytes | None = body
        self._is_over = is_over
        self._scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode("utf-8", "surrogateescape"),
            "query_string": urlencode(given, errors="surrogateescape").encode("ascii"),
            "root_path": "",
            "headers": [(b"user-agent", agent.encode()), (b"content-length", str(len(body)).encode())],
            SCOPE_KEY: outer.scope[SCOPE_KEY],
            TRANSPORT_KEY: self,
            WITHIN_KEY: True,
        }

    @property
    def body(self) -> bytes:
        return b"".join(self._pieces)

    def is_closing(self) -> bool:
        """As of a connection: whether the rest of the answer is for nobody."""
        return self.too_much or self._is_over()

    async def put_to(self, app: ASGIApp) -> None:
        scope, self._scope = self._scope, {}  # which knows this one: no cycle with the answer in it is left behind
        try:
            await app(scope, self._receive, self._send)
        except Exception:
            if not self.status:  # else it was answered and logged
                raise

    async def _receive(self) -> Message:
        """The body, once; then nothing comes until all who asked are gone."""
        sent, self._sent = self._sent, None
        if sent is not None:
            return {"type": "http.request", "body": sent, "more_body": False}
        while not self._is_over():
            await asyncio.sleep(_LOOK_S)
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}
            return
        self.complete = self.complete or not message.get("more_body", False)
        piece = cast(bytes, message.get("body", b""))
        self._size += len(piece)
        self.too_much = self.too_much or self._size > MOST_ANSWER
        if not self.too_much:
            self._pieces.append(piece)


def numbers_in(word: str) -> int:
    """How many tasks or hosts the ranges in it may stand for."""
    return sum(max(0, _bounded(last) - _bounded(first)) for first, last in _RANGE.findall(word))


def _bounded(digits: str) -> int:
    """The number, or one that is larger than any that is taken: thousands of digits are not read."""
    return int(digits.lstrip("0")[:18] or "0")


def _number(digits: bytes) -> int:
    if not re.fullmatch(rb"-?[0-9]{1,9}", digits):
        raise parcels.BadParcelError("a number is expected")
    return int(digits)
