"""Sessions of people who look at the pages: begin one, say whose it is, list them, end them.

`bireme web` asks for a link over the socket, where the kernel says who asks; the browser brings its code to the web
process, which trades it here for the session's token. Who begins a session has the rights of who asked for the link, no
more and no less. Invariants: nobody gets a link by a session or from inside a job on another machine, so that what was
revoked cannot renew itself; a token is told once, in the answer to the code.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bireme.api.cluster import Pages, PagesError
from bireme.api.problems import ProblemError, answer
from bireme.api.routing import Context, Routes
from bireme.api.serving.bearers import session_of
from bireme.api.serving.peers import SCOPE_KEY
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.identity.sessions import CODE_S, Identity, Session, Sessions

routes = Routes("pages")
_OFF = "the pages are switched off here: an operator switches them on again (bireme web)"


@routes.post("/v1/web/links")
async def new_link(api: Context, request: Request) -> Response:
    """A link that logs the caller in to the pages, once and within five minutes; the pages are served from then on.

    Answered with `url`, which holds the code, `pages`, where they are, and `good_for_s`. Only over the socket.
    """
    caller, sessions, pages = api.caller(request), _sessions(api), _pages(api)
    if session_of(request.scope) is not None or api.inside_job(request):
        raise Refusal(Why.ACCESS_DENIED, "a link is given on the daemon's machine alone: bireme web")
    if pages.is_off and not caller.admin:
        raise ProblemError(403, _OFF)
    try:
        url = await pages.open()
    except PagesError as error:
        raise ProblemError(503, str(error)) from error
    peer = request.scope[SCOPE_KEY]
    code = sessions.offer(Identity(peer.uid, peer.gid, peer.groups))
    return answer({"url": f"{url}/login/{code}", "pages": url, "good_for_s": CODE_S, "user": caller.user})


@routes.post("/v1/web/sessions", body="`code`: of a link; `about`: what the browser says of itself.")
async def begin_session(api: Context, request: Request) -> Response:
    """Trade a link's code for a session: its `token`, which is told here only, and the `session`."""
    body = await api.body(request)
    code, about = _code(body), body.get("about", "")
    if not isinstance(about, str):
        raise ProblemError(400, "about: is no text")
    made = _sessions(api).redeem(code, about)
    if made is None:
        raise _not_good()
    return answer({"token": made[0], "session": _record(made[1], made[1].id)})


@routes.post("/v1/web/links/whose", body="`code`: of a link.")
async def whose_link(api: Context, request: Request) -> Response:
    """As whom a link's code would log in: `user` and `uid`. It is not used up."""
    whose = _sessions(api).offered_to(_code(await api.body(request)))
    if whose is None:
        raise _not_good()
    names = await api.callers.user_names({whose.uid}, whose.uid)
    return answer({"user": names[whose.uid], "uid": whose.uid})


@routes.get("/v1/web/me")
async def who_am_i(api: Context, request: Request) -> Response:
    """Who the caller is to the daemon, and the session that the request came by (null over the socket).

    `view`: answers with this word in their header `bireme-view` are the same for all who have it; empty: something is
    hidden from the caller, whose answers are for nobody else.
    """
    caller, session = api.caller(request), session_of(request.scope)
    shown = None if session is None else _record(session, session.id)
    who = {"user": caller.user, "uid": caller.uid, "admin": caller.admin, "view": api.view(caller)}
    return answer({**who, "session": shown, "now": api.now()})


@routes.get("/v1/web/sessions", all="1: everybody's. For operators.")
async def list_sessions(api: Context, request: Request) -> Response:
    """Sessions that last, the oldest first: `id`, whose, since when, used when, until when, and with which browser."""
    caller = api.caller(request)
    everybody = request.query_params.get("all", "") == "1"
    if everybody and not caller.admin:
        raise Refusal(Why.ACCESS_DENIED, "everybody's sessions are listed for operators")
    found = _sessions(api).of(None if everybody else caller.uid)
    names = await api.callers.user_names({each.whose.uid for each in found}, caller.uid)
    own = session_of(request.scope)
    rows = [{**_record(each, own.id if own else ""), "user": names[each.whose.uid]} for each in found]
    return answer({"sessions": rows, "now": api.now()})


@routes.post(
    "/v1/web/sessions/revoke",
    body="`sessions`: ids, of one's own (for operators: of anybody's); or `all`: true, all one's own; or `everybody`: "
    "true, for operators.",
)
async def revoke_sessions(api: Context, request: Request) -> Response:
    """End sessions: their next request is refused. Links that nobody has used end with `all` and `everybody`."""
    body, caller, sessions = await api.body(request), api.caller(request), _sessions(api)
    uid, ids = _meant(caller, body, sessions)
    if body.get("all") is True or body.get("everybody") is True:
        sessions.revoke_codes(uid)
    ended = sessions.revoke(ids, uid)
    if isinstance(body.get("sessions"), list) and not ended:
        raise ProblemError(404, "none of these is a session of yours", hint="bireme web sessions lists them")
    return answer({"ended": [each.id for each in ended]})


@routes.post("/v1/web/off")
async def switch_off(api: Context, request: Request) -> Response:
    """Serve no pages any more, until an operator asks for a link. Sessions last. For operators."""
    if not api.caller(request).admin:
        raise Refusal(Why.ACCESS_DENIED, "operators switch the pages off")
    await _pages(api).close()
    return answer({})


def _meant(caller: Caller, body: dict[str, Any], sessions: Sessions) -> tuple[int | None, list[str]]:
    """Whose sessions may be ended (None: anybody's), and which are to be."""
    if body.get("everybody") is True:
        if not caller.admin:
            raise Refusal(Why.ACCESS_DENIED, "operators end everybody's sessions")
        return None, [each.id for each in sessions.of()]
    if body.get("all") is True:
        return caller.uid, [each.id for each in sessions.of(caller.uid)]
    ids = body.get("sessions")
    if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
        raise ProblemError(400, "sessions: a list of ids, as bireme web sessions prints them")
    return None if caller.admin else caller.uid, ids


def _code(body: dict[str, Any]) -> str:
    code = body.get("code")
    if not isinstance(code, str):
        raise ProblemError(400, "code: is missing, or no text")
    return code


def _not_good() -> ProblemError:
    return ProblemError(403, "this link was used before, or is too old", hint="bireme web prints a new one")


def _sessions(api: Context) -> Sessions:
    if api.service.sessions is None:
        raise ProblemError(404, "this daemon serves no pages")
    return api.service.sessions


def _pages(api: Context) -> Pages:
    if api.service.pages is None:
        raise ProblemError(404, "this daemon serves no pages")
    return api.service.pages


def _record(session: Session, own: str) -> dict[str, Any]:
    return {
        "id": session.id,
        "uid": session.whose.uid,
        "made_at": session.made_at,
        "seen_at": session.seen_at,
        "ends_at": session.ends_at,
        "about": session.about,
        "own": session.id == own,
    }
