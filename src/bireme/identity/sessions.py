"""Sessions of people: the one-time code that begins one, the token that it is asked with, and its end.

The daemon has one `Sessions`; `api/routes/pages` gives codes out and takes them, and `api/serving/bearers` asks who a
token is. A session is exactly who asked for its code: uid, gid and groups as the kernel gave them. Not here: names and
rights (they are looked up for each request, as for everybody), and logins from elsewhere, whose place this room is.

Invariants: neither a code nor a token is kept, only what they hash to; a code is good once; whatever ends a session is
on disk before it is said to have ended.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

CODE_S = 300.0
"""So long a code waits to be used."""
MOST_CODES, MOST_SESSIONS = 16, 32
"""Of one user; one more takes the place of the oldest."""
LONGEST_ABOUT = 160
_CODE_BYTES, _TOKEN_BYTES, _ID_BYTES = 24, 32, 4
_NOTED_EVERY_S = 60.0
"""A session that is used is written down no more often."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who somebody is to the kernel."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Session:
    id: str
    """By which people name it: no secret."""
    digest: str
    """What its token hashes to."""
    whose: Identity
    made_at: float
    seen_at: float
    ends_at: float
    """Whatever it is used for until then."""
    about: str = ""
    """What the browser said of itself."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a session lasts: at most, and unused."""

    most_s: float
    idle_s: float


class Kept(Protocol):
    """Where sessions outlive the daemon (`identity/keeping.py`)."""

    def read(self) -> list[Session]: ...

    def write(self, sessions: Iterable[Session]) -> None:
        """On disk when it returns. Raises OSError."""


class Sessions:
    """All codes and sessions of one daemon. `patience` is asked each time: settings may change."""

    def __init__(self, kept: Kept, clock: Callable[[], float], patience: Callable[[], Patience]) -> None:
        self._kept, self._clock, self._patience = kept, clock, patience
        self._by_digest = {session.digest: session for session in kept.read()}
        self._codes: dict[str, tuple[Identity, float]] = {}
        """By what the code hashes to: whose it is and until when it is good; oldest first."""
        self._noted_at = clock()

    def offer(self, whose: Identity) -> str:
        """A code with which somebody begins a session as `whose`, once and soon."""
        now = self._clock()
        self._codes = {digest: each for digest, each in self._codes.items() if each[1] > now}
        own = [digest for digest, each in self._codes.items() if each[0].uid == whose.uid]
        for digest in own[: max(0, len(own) - MOST_CODES + 1)]:
            del self._codes[digest]
        code = secrets.token_urlsafe(_CODE_BYTES)
        self._codes[_digest(code)] = (whose, now + CODE_S)
        return code

    def offered_to(self, code: str) -> Identity | None:
        """As whom a code begins a session, while it is good: it is not used up."""
        whose, until = self._codes.get(_digest(code), (None, 0.0))
        return whose if until > self._clock() else None

    def redeem(self, code: str, about: str) -> tuple[str, Session] | None:
        """A new session and its token, which is said here only; None for a code that is not (or no longer) good.

        Raises OSError: then there is no session, and the code is used up.
        """
        whose, until = self._codes.pop(_digest(code), (None, 0.0))
        now, patience = self._clock(), self._patience()
        if whose is None or until <= now:
            return None
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        made = Session(
            id=secrets.token_hex(_ID_BYTES),
            digest=_digest(token),
            whose=whose,
            made_at=now,
            seen_at=now,
            ends_at=now + patience.most_s,
            about="".join(letter if letter.isprintable() else "?" for letter in about)[:LONGEST_ABOUT],
        )
        own = sorted(self.of(whose.uid), key=lambda each: each.seen_at)
        self._write({each.digest for each in own[: max(0, len(own) - MOST_SESSIONS + 1)]}, made)
        return token, made

    def find(self, token: str) -> Session | None:
        """The session that a token belongs to, while it lasts. It counts as used now."""
        session = self._by_digest.get(_digest(token))
        now = self._clock()
        if session is None or not self._lasts(session, now):
            return None
        used = self._by_digest[session.digest] = replace(session, seen_at=max(now, session.seen_at))
        return used

    def note_use(self) -> None:
        """Writes down which sessions were used, now and then: without it a restart would take them for idle."""
        now = self._clock()
        if abs(now - self._noted_at) >= _NOTED_EVERY_S and self._by_digest:
            self._noted_at = now
            self._write(set())

    def of(self, uid: int | None = None) -> list[Session]:
        """Those that last: of this user, or all; the oldest first."""
        now = self._clock()
        found = [each for each in self._by_digest.values() if self._lasts(each, now)]
        return sorted((each for each in found if uid in (None, each.whose.uid)), key=lambda each: each.made_at)

    def revoke(self, ids: Iterable[str], uid: int | None = None) -> list[Session]:
        """Ends those of these sessions that are this user's (None: anybody's), and unused codes with the last one of
        them; returns them. Raises OSError, and then they still last."""
        named = set(ids)
        ended = [each for each in self.of(uid) if each.id in named]
        if ended:
            self._write({each.digest for each in ended})
        return ended

    def revoke_codes(self, uid: int | None = None) -> None:
        """Codes that nobody has used are good for nothing any more."""
        self._codes = {key: each for key, each in self._codes.items() if uid not in (None, each[0].uid)}

    def _lasts(self, session: Session, now: float) -> bool:
        """A clock that was set back ends none."""
        return now < session.ends_at and now - session.seen_at < self._patience().idle_s

    def _write(self, without: set[str], added: Session | None = None) -> None:
        now = self._clock()
        left = {
            digest: each for digest, each in self._by_digest.items() if digest not in without and self._lasts(each, now)
        }
        if added is not None:
            left[added.digest] = added
        self._kept.write(left.values())
        self._by_digest = left


def _digest(secret: str) -> str:
    """Of what has so many random bits that nobody finds it by trying: no salt, no slow hash is needed."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
