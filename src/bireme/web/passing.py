"""What scripts of pages ask for under `/v1/`: passed on to the daemon as the session's request, and answered as it is.

Reading needs the session's cookie; changing something its proof too, and a page of ours that sends it.
Invariants: no user has so much under way that others have to wait for it; what comes back is never a document of ours
to the browser: no answer of the daemon's is shown as HTML.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from bireme.web.asking import Shared
from bireme.web.bodies import body_within
from bireme.web.bounds import Bound
from bireme.web.guards import Place, is_own_page, is_proven
from bireme.web.upstream import RefusedError, Streamed, target_of

MOST_BODY = 16 << 20
MOST_READS, MOST_READS_EACH = 1024, 128
MOST_CHANGES, MOST_CHANGES_EACH = 256, 16
"""Under way: some last as long as who asked likes. Nothing of it is counted among what draws pages."""
_MEDIA = ("application/json", "application/octet-stream", "application/x-ndjson", "text/event-stream", "text/plain")
_NOT_HERE = ("/v1/web/links", "/v1/web/links/whose", "/v1/web/sessions")
"""Changes that only `bireme web` and the way in make."""
_KEPT = ("retry-after", "bireme-out-of-date", "content-disposition")


class Passing:
    """`changed` is told of whose request has changed something."""

    def __init__(self, place: Place, shared: Shared, changed: Callable[[int], None]) -> None:
        self._place, self._shared, self._changed = place, shared, changed
        self._reads = Bound("answers", MOST_READS, MOST_READS_EACH)
        self._changes = Bound("requests", MOST_CHANGES, MOST_CHANGES_EACH)

    async def read(self, request: Request) -> Response:
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return _refused(403, "this is answered to pages of Bireme's own alone")
        if request.scope["path"].endswith("/hold-open"):
            return _refused(403, "only the command that holds a job may hold it open")
        visitor = await self._shared.visitor(request.cookies.get(self._place.cookie, ""))
        with ExitStack() as held:
            held.enter_context(self._reads.held(visitor.uid))
            streamed = await self._shared.upstream.stream("GET", _target(request), visitor.token)
            held.callback(streamed.close)
            return _Passed(streamed, held.pop_all())

    async def change(self, request: Request) -> Response:
        token = request.cookies.get(self._place.cookie, "")
        if not is_own_page(request.headers) or not is_proven(token, request.headers):
            return _refused(403, "a change needs the proof of a page of Bireme's own: load the page again")
        if request.scope["path"] in _NOT_HERE:
            return _refused(403, "that is done by bireme web, on the daemon's machine")
        visitor = await self._shared.visitor(token)
        body = await body_within(request, MOST_BODY)
        if body is None:
            return _refused(413, f"a page may send {MOST_BODY >> 20} MiB: use the command")
        kind = _media(request.headers.get("content-type", "application/json"))
        with self._changes.held(visitor.uid):
            answer = await self._shared.upstream.ask("POST", _target(request), token, body, kind, lasts=True)
        self._shared.forget(visitor.uid)
        self._changed(visitor.uid)
        media = _media(answer.headers.get("content-type", ""))
        return Response(answer.body, answer.status, {"cache-control": "no-store"}, media)


class _Passed(StreamingResponse):
    """What the daemon answers, as it comes. `held` is given back however it ends, also where nobody hears its
    beginning."""

    def __init__(self, streamed: Streamed, held: ExitStack) -> None:
        kept = {name: value for name, value in streamed.headers.items() if name in _KEPT}
        media = _media(streamed.headers.get("content-type", ""))
        super().__init__(streamed.pieces(), streamed.status, {**kept, "cache-control": "no-store"}, media)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            await super().__call__(scope, receive, send)


def _target(request: Request) -> str:
    query = request.url.query
    return target_of(request.scope["path"]) + (f"?{query}" if query else "")


def _media(text: str) -> str:
    media = text.partition(";")[0].strip().lower()
    return media if media in _MEDIA else "text/plain"


def _refused(status: int, why: str) -> Response:
    return JSONResponse({"error": {"message": why, "code": None, "slurm_errno": None, "hint": ""}}, status)


def refused_as_json(error: RefusedError) -> Response:
    return Response(error.body, error.status, media_type="application/json")
