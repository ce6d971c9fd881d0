"""The way in and out: a link's code becomes a session's cookie, and the cookie goes.

A link that is opened from a terminal or typed logs in by itself; one that another page leads to asks first, so that
nobody is logged in as somebody else by following a link. Invariant: a code is used by a POST of our own page alone: who
only looks at a link (a mail's scanner, a chat's preview) does not use it up.
"""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from bireme.web.asking import NotLoggedInError, Shared
from bireme.web.guards import Place, is_own_page
from bireme.web.paging import Press
from bireme.web.upstream import RefusedError

_MOST_FORM = 4096


class Login:
    def __init__(self, place: Place, press: Press, shared: Shared) -> None:
        self._place, self._press, self._shared = place, press, shared

    async def ask(self, request: Request) -> Response:
        """What a link leads to."""
        code = request.path_params["code"]
        site = request.headers.get("sec-fetch-site", "none")
        known = await self._user(request)
        at_once = site == "none" and not known
        return HTMLResponse(self._press.plain("login.html", "Log in", code=code, at_once=at_once, known=known))

    async def begin(self, request: Request) -> Response:
        if not is_own_page(request.headers):
            return self._failed("This form was sent by another page.", 403)
        body = await request.body()
        form = parse_qs(body[:_MOST_FORM].decode("latin-1"))
        code = form.get("code", [""])[0]
        try:
            told = await self._shared.upstream.begin_session(code, request.headers.get("user-agent", ""))
        except RefusedError as error:
            return self._failed(f"{error.message}.", 403)
        answer = RedirectResponse(f"{self._place.prefix}/", 303)
        most_s = int(told["session"]["ends_at"] - told["session"]["made_at"])
        answer.headers["set-cookie"] = self._place.set_cookie(told["token"], most_s)
        return answer

    async def end(self, request: Request) -> Response:
        token = request.cookies.get(self._place.cookie, "")
        if not is_own_page(request.headers):
            return self._failed("This form was sent by another page.", 403)
        try:
            visitor = await self._shared.visitor(token)
            await self._shared.upstream.post(token, "/v1/web/sessions/revoke", {"sessions": [visitor.session]})
        except (NotLoggedInError, RefusedError):
            pass  # it has ended before
        self._shared.forget_token(token)
        answer = RedirectResponse(f"{self._place.prefix}/", 303)
        answer.headers["set-cookie"] = self._place.set_cookie("", 0)
        return answer

    def _failed(self, why: str, status: int) -> Response:
        return HTMLResponse(self._press.plain("way_in.html", "Log in", why=why, again=False), status)

    async def _user(self, request: Request) -> str:
        """Who is logged in already; empty: nobody."""
        try:
            return (await self._shared.visitor(request.cookies.get(self._place.cookie, ""))).user
        except (NotLoggedInError, RefusedError):
            return ""
