"""The application of the pages (ASGI): every page, the way in, what is passed on, live updates and files.

Made by `__main__`. Invariant: every answer, also an error's, carries the headers of `guards`.
"""

from __future__ import annotations

import gzip
import logging
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import bireme
from bireme.web.asking import NotLoggedInError, Shared
from bireme.web.bounds import TooMuchError
from bireme.web.drawing import Drawing
from bireme.web.files import Files
from bireme.web.guards import SAFE_HEADERS, Place, proof_of
from bireme.web.live import Live
from bireme.web.login import Login
from bireme.web.pages import MENU, PAGES
from bireme.web.paging import Page, Press
from bireme.web.passing import Passing, refused_as_json
from bireme.web.upstream import AwayError, RefusedError, Upstream

log = logging.getLogger("bireme.web")

_PACKED_FROM = 1024
_SAFE = [(name.encode(), value.encode()) for name, value in SAFE_HEADERS.items()]

Endpoint = Callable[[Request], Awaitable[Response]]


def create_app(place: Place, upstream: Upstream) -> ASGIApp:
    files = Files()
    drawing = Drawing(
        {
            "menu": MENU,
            "root": place.prefix,
            "static": f"{place.prefix}/static/{files.version}",
            "release": bireme.__version__,
            "proof_of": proof_of,
        }
    )
    shared = Shared(upstream)
    press = Press(drawing, shared)
    live = Live(place, press, shared, PAGES)
    login, passing = Login(place, press, shared), Passing(place, shared, live.changed)

    async def home(_: Request) -> Response:
        return RedirectResponse(f"{place.prefix}/now", 303)

    routes = [
        Route("/", home),
        *(Route(page.path, _served(page, place, press, shared), methods=["GET"]) for page in PAGES),
        Route("/login", login.begin, methods=["POST"]),
        Route("/login/{code}", login.ask, methods=["GET"]),
        Route("/logout", login.end, methods=["POST"]),
        Route("/live", live.answer, methods=["GET"]),
        Route("/static/{version}/{name}", files.answer, methods=["GET"]),
        Route("/v1/{path:path}", passing.read, methods=["GET"]),
        Route("/v1/{path:path}", passing.change, methods=["POST"]),
    ]
    app = Starlette(routes=routes, exception_handlers=_failures(press))
    app.router.redirect_slashes = False  # it would lead to whatever host and path the request names
    return _Guarded(app, place.prefix)


def _served(page: Page, place: Place, press: Press, shared: Shared) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        visitor = await shared.visitor(request.cookies.get(place.cookie, ""))
        html = await press.page(page, visitor, request.path_params, request.query_params)
        return _html(request, html)

    return endpoint


def _html(request: Request, text: str, status: int = 200) -> Response:
    headers = {"cache-control": "no-store", "vary": "accept-encoding"}
    body = text.encode()
    if len(body) >= _PACKED_FROM and "gzip" in request.headers.get("accept-encoding", ""):
        body, headers["content-encoding"] = gzip.compress(body, 1), "gzip"
    return Response(body, status, headers, "text/html; charset=utf-8")


def _failures(press: Press) -> dict[object, Callable[[Request, Exception], Awaitable[Response]]]:
    def is_script(request: Request) -> bool:
        path: str = request.scope["path"]
        return path.startswith(("/v1/", "/live"))

    def said(request: Request, status: int, title: str, why: str, hint: str = "") -> Response:
        if is_script(request):
            error = {"message": why, "code": None, "slurm_errno": None, "hint": hint}
            return JSONResponse({"error": error}, status, {"cache-control": "no-store"})
        return HTMLResponse(press.plain("failed.html", title, why=why, hint=hint, status=status), status)

    async def not_logged_in(request: Request, _: Exception) -> Response:
        if is_script(request):
            return said(request, 401, "", "You are not logged in", "bireme web prints a link")
        # A link on another site's page comes without our cookie; asked for by our own page, it comes with it.
        again = request.headers.get("sec-fetch-site") == "cross-site" and request.method == "GET"
        return HTMLResponse(press.plain("way_in.html", "Log in", why="", again=again), 401)

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, RefusedError)
        if is_script(request):
            return refused_as_json(error)
        title = "Not found" if error.status == 404 else "Refused"
        return said(request, error.status, title, error.message, error.hint)

    async def away(request: Request, error: Exception) -> Response:
        hint = "bireme status says how it is; this page tries again by itself"
        return said(request, 503, "The daemon does not answer", str(error), hint)

    async def too_much(request: Request, error: Exception) -> Response:
        return said(request, 429, "Too much at once", str(error), "what is under way goes on")

    async def no_such_page(request: Request, _: Exception) -> Response:
        return said(request, 404, "Not found", "There is no such page.")

    async def not_so(request: Request, _: Exception) -> Response:
        return said(request, 405, "Refused", "This address is not asked in that way.")

    async def failed(request: Request, error: Exception) -> Response:
        log.error("%s could not be drawn", request.url.path, exc_info=error)
        return said(request, 500, "This page could not be drawn", "It is a bug of Bireme's.", "log/web.log says more")

    return {
        NotLoggedInError: not_logged_in,
        RefusedError: refused,
        AwayError: away,
        TooMuchError: too_much,
        404: no_such_page,
        405: not_so,
        Exception: failed,
    }


class _Guarded:
    """Around everything: headers on every answer, and the prefix taken off, whether or not a proxy has done so."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app, self._prefix = app, prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        if self._prefix and (path == self._prefix or path.startswith(f"{self._prefix}/")):
            scope = {**scope, "path": path[len(self._prefix) :] or "/"}

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *_SAFE]}
            await send(message)

        await self._app(scope, receive, guarded)
