"""The way in and out: a link's code becomes a session's cookie, and the cookie goes.

Anybody can make a link of their own and lead somebody else to it, whose work would then be theirs to read. So the page
says who one would be, and waits for a click that no script makes; who is logged in as another is asked about that one
too. Invariants: a code is used by a POST of our own page alone: who only looks at a link (a mail's scanner, a chat's
preview) does not use it up; no session takes another's place that its user was not told of.
"""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from bireme.web.asking import NotLoggedInError, Shared, Visitor
from bireme.web.bodies import body_within
from bireme.web.guards import Place, is_own_page
from bireme.web.paging import Press
from bireme.web.upstream import RefusedError

_MOST_FORM = 4096


class Login:
    def __init__(self, place: Place, press: Press, shared: Shared) -> None:
        self._place, self._press, self._shared = place, press, shared

    async def ask(self, request: Request) -> Response:
        """What a link leads to."""
        try:
            return await self._asked(request, request.path_params["code"])
        except RefusedError as error:
            return self._failed(f"{error.message}.", 403)

    async def begin(self, request: Request) -> Response:
        if not is_own_page(request.headers):
            return self._failed("This form was sent by another page.", 403)
        body = await body_within(request, _MOST_FORM)
        if body is None:
            return self._failed("This form is too large to be one of ours.", 413)
        form = parse_qs(body.decode("latin-1"))
        code = form.get("code", [""])[0]
        known = await self._known(request)
        try:
            if known is not None and form.get("instead", [""])[0] != known.session:
                return await self._asked(request, code)
            told = await self._shared.upstream.begin_session(code, request.headers.get("user-agent", ""))
        except RefusedError as error:
            return self._failed(f"{error.message}.", 403)
        answer = self._home()
        most_s = int(told["session"]["ends_at"] - told["session"]["made_at"])
        answer.headers["set-cookie"] = self._place.set_cookie(told["token"], most_s)
        return answer

    async def _asked(self, request: Request, code: str) -> Response:
        """The page that asks whether to become whoever made the link; the pages, where one is that already. Raises
        RefusedError."""
        whose, known = await self._shared.upstream.whose_link(code), await self._known(request)
        if known is not None and known.uid == whose["uid"]:
            return self._home()
        return HTMLResponse(self._press.plain("login.html", "Log in", code=code, user=whose["user"], known=known))

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
        answer = self._home()
        answer.headers["set-cookie"] = self._place.set_cookie("", 0)
        return answer

    def _failed(self, why: str, status: int) -> Response:
        return HTMLResponse(self._press.plain("way_in.html", "Log in", why=why, again=False), status)

    def _home(self) -> Response:
        return RedirectResponse(f"{self._place.prefix}/", 303)

    async def _known(self, request: Request) -> Visitor | None:
        """Who is logged in already. A link on another site's page comes without the cookie, the form after it does
        not."""
        try:
            return await self._shared.visitor(request.cookies.get(self._place.cookie, ""))
        except (NotLoggedInError, RefusedError):
            return None
