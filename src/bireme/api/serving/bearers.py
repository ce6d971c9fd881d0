"""Requests that bring a session's token: they are their owner's from here on, whoever's connection they came by.

`api/app.py` asks before anything else looks at a request. A token makes a request less than its connection or more, but
never a mixture of both: one that is no (longer a) session's is refused, not answered as the connection's own.
Invariant: nothing but `identity/sessions` says whom a token stands for.
"""

from __future__ import annotations

from typing import Any

from bireme.api.serving.peers import SCOPE_KEY, Peer
from bireme.identity.sessions import Session, Sessions

SESSION_KEY = "bireme.session"
_SCHEME = b"bearer "


def token_of(scope: Any) -> str | None:
    """What a request brings as `Authorization: Bearer TOKEN`; None where it brings no such header, and nothing good
    where it brings another."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            is_ours = value[: len(_SCHEME)].lower() == _SCHEME
            return value[len(_SCHEME) :].strip().decode("latin-1") if is_ours else ""
    return None


def become(scope: Any, sessions: Sessions | None) -> bool:
    """Makes the request its session's; False where it brings a token that is good for nothing."""
    token = token_of(scope)
    if token is None:
        return True
    session = sessions.find(token) if sessions is not None else None
    if session is None:
        return False
    whose = session.whose
    scope[SCOPE_KEY] = Peer(whose.uid, whose.gid, 0, whose.groups)
    scope[SESSION_KEY] = session
    return True


def session_of(scope: Any) -> Session | None:
    """That a request came by, if it did."""
    found: Session | None = scope.get(SESSION_KEY)
    return found
