"""Errors as JSON, and reading a request's body within limits.

Every error has the shape {"error": {"message", "code", "slurm_errno", "hint", "remark"}}: Slurm's sentence, name and
number where Slurm has them, what Bireme knows beyond it, and the line Slurm says before it, if any.
Not here: deciding what is wrong (the kinds of `core/` raise Refusal).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from bireme.api.serving.peers import SCOPE_KEY
from bireme.core.model.refusals import Refusal, Why
from bireme.held_by_user import HeldByUser
from bireme.ports import BlobShareError, JournalError, StoreError
from bireme.store.codec import WrongShapeError, dumps, loads_foreign

log = logging.getLogger(__name__)

MOST_BESIDE = 4 << 20
"""Bytes of a submission beside its script."""
DEEPEST = 100
"""So many objects and lists inside each other a request may have."""

_STATUS = {
    Why.ACCESS_DENIED: 403,
    Why.INVALID_JOB_ID: 404,
    Why.INVALID_SERVICE: 404,
    Why.SERVICE_STOPPING: 409,
    Why.SERVICE_NAME_TAKEN: 409,
    Why.INVALID_REVISION: 404,
    Why.INVALID_FINDING: 404,
    Why.INVALID_HEALING: 404,
    Why.NOTHING_TO_ROLL_BACK: 409,
    Why.NOTHING_TO_PROMOTE: 409,
    Why.INVALID_SERVICE_KEY: 404,
    Why.SERVICE_KEY_EXISTS: 409,
    Why.NODES_BUSY: 409,
    Why.JOB_PENDING: 409,
    Why.TRANSITION_STATE_NO_UPDATE: 409,
    Why.TOO_MANY_JOBS: 503,
}


class ProblemError(Exception):
    """A request that cannot be understood or is not possible here."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, errno: int | None = None, hint: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.content = _content(message, code, errno, hint)


def script_too_large(size: int, limit: int) -> ProblemError:
    return ProblemError(
        413,
        "Pathname of a file, directory or other parameter too long",
        code="ESLURM_PATHNAME_TOO_LONG",
        errno=2012,
        hint=f"the script has {size} bytes, max_script_size is {limit}",
    )


def _content(message: str, code: str | None, errno: int | None, hint: str, remark: str = "") -> dict[str, Any]:
    error = {"message": message, "code": code, "slurm_errno": errno, "hint": hint}
    return {"error": {**error, "remark": remark} if remark else error}


def refusal_content(refusal: Refusal) -> dict[str, Any]:
    return _content(refusal.message, refusal.name, refusal.errno, refusal.hint, refusal.remark)


def answer(content: Any, status: int = 200) -> Response:
    """JSON by msgspec: several times faster than the framework's own way, which matters for ten thousand jobs."""
    return Response(dumps(content), status, media_type="application/json")


def not_logged_in() -> Response:
    """To a request whose token is no session's."""
    said = _content("You are not logged in", None, 13, "the session has ended: bireme web prints a link to a new one")
    return answer(said, 401)


class Bodies:
    """How many bytes of unfinished bodies are kept, for all of one user's requests together."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept = HeldByUser()

    def keep(self, uid: int, count: int) -> None:
        if self._kept.of(uid) + count > self._most:
            hint = f"your requests under way have more than {self._most} bytes together: send them one after another"
            raise ProblemError(429, "Too many large requests at once", errno=11, hint=hint)
        self._kept.add(uid, count)

    def drop(self, uid: int, count: int) -> None:
        self._kept.add(uid, -count)

    @contextmanager
    def held(self, uid: int, count: int) -> Iterator[None]:
        """While so many bytes of a user's are kept for something that takes its time."""
        self.keep(uid, count)
        try:
            yield
        finally:
            self.drop(uid, count)


async def read_body(request: Request, limit: int, bodies: Bodies) -> bytes:
    """The whole body; refuses more than `limit` bytes without reading them all."""
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and (len(announced) > 15 or int(announced) > limit):
        raise _body_too_large(limit)
    uid, received, more = request.scope[SCOPE_KEY].uid, bytearray(), True
    try:
        while more:  # the framework's own stream takes longer than all of this
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            piece, more = message.get("body", b""), message.get("more_body", False)
            if len(received) + len(piece) > limit:
                raise _body_too_large(limit)
            bodies.keep(uid, len(piece))
            received += piece
    finally:
        bodies.drop(uid, len(received))
    return bytes(received)


def _body_too_large(limit: int) -> ProblemError:
    return ProblemError(
        413,
        "Pathname of a file, directory or other parameter too long",
        code="ESLURM_PATHNAME_TOO_LONG",
        errno=2012,
        hint=f"requests of more than {limit} bytes are not read: send several (settings max_script_size, "
        "api.max_body_bytes)",
    )


def parse_json(body: bytes) -> dict[str, Any]:
    """The object that a request's body is; none where it has no body."""
    if not body:
        return {}
    try:
        content = loads_foreign(body)
    except RecursionError:
        raise ProblemError(400, "the request is nested too deeply") from None
    except ValueError as error:
        raise ProblemError(400, f"the request is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ProblemError(400, "the request must be a JSON object")
    if _is_deeper(body, DEEPEST):
        raise ProblemError(400, "the request is nested too deeply")
    return content


def _is_deeper(text: bytes, levels: int) -> bool:
    """Whether valid JSON has more lists and objects inside each other than `levels`.

    How deep Python itself reads depends on its release: from 3.12 on, further than anybody here may go. Told by the
    brackets outside strings: to look at millions of small values one by one would take seconds.
    """
    if text.count(b"[") + text.count(b"{") <= levels:
        return False
    letters = np.frombuffer(text.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    outside = np.cumsum(letters == _QUOTE, dtype=np.uint8) & 1 == 0
    steps = _STEPS[letters] * outside
    return int(np.cumsum(steps, dtype=np.int32).max()) > levels


_QUOTE = ord('"')
_STEPS = np.zeros(256, np.int8)
"""How each letter changes how deep one is."""
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1


Failure = TypeVar("Failure", bound=Exception)
Handler: TypeAlias = Callable[[Request, Failure], Awaitable[Response]]


async def answer_to(app: Starlette, request: Request, error: Exception) -> Response:
    """What the handler of this kind of failure says."""
    kind = next(kind for kind in type(error).__mro__ if kind in app.exception_handlers)
    answered: Any = app.exception_handlers[kind](request, error)
    response: Response = await answered
    return response


def install(app: Starlette) -> None:
    """One handler for each kind of failure, so that routes only raise."""

    def answers(kind: type[Failure]) -> Callable[[Handler[Failure]], Handler[Failure]]:
        def register(handler: Handler[Failure]) -> Handler[Failure]:
            app.exception_handlers[kind] = handler
            return handler

        return register

    @answers(Refusal)
    async def refused(_: Request, error: Refusal) -> Response:
        return answer(refusal_content(error), _STATUS.get(error.why, 400))

    @answers(ProblemError)
    async def problem(_: Request, error: ProblemError) -> Response:
        answered = answer(error.content, error.status)
        if error.status == 429:  # nothing was done: it may be sent again
            answered.headers["retry-after"] = "1"
        return answered

    @answers(ClientDisconnect)
    async def gone(_: Request, error: ClientDisconnect) -> Response:
        """Nobody is there to be answered, and nothing failed."""
        return Response(status_code=408)

    @answers(RecursionError)
    async def too_deep(_: Request, error: RecursionError) -> Response:
        """The problem of a body that could be read, but not taken apart: lists in lists, a thousand deep."""
        return answer(_content("the request is nested too deeply", None, 22, ""), 400)

    @answers(WrongShapeError)
    async def wrong_shape(_: Request, error: WrongShapeError) -> Response:
        return answer(_content(str(error), None, 22, ""), 400)

    @answers(BlobShareError)
    async def no_room(_: Request, error: BlobShareError) -> Response:
        hint = f"{error}: submit the jobs that name them, then send this again"
        answered = answer(_content("Too many large requests at once", None, 11, hint), 429)
        answered.headers["retry-after"] = "1"
        return answered

    @answers(JournalError)
    async def not_stored(_: Request, error: JournalError) -> Response:
        log.error("%s", error)
        return answer(_content(f"nothing was stored: {error}", "EIO", 5, ""), 507)

    @answers(StoreError)
    async def unreadable(_: Request, error: StoreError) -> Response:
        log.error("%s", error)
        return answer(_content(str(error), "EIO", 5, ""), 500)

    @answers(HTTPException)
    async def http(_: Request, error: HTTPException) -> Response:
        message = "there is no such route" if error.status_code == 404 else str(error.detail)
        return answer(_content(message, None, None, ""), error.status_code)

    @answers(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return answer(_content("the daemon failed to answer; its log says why", None, None, ""), 500)
