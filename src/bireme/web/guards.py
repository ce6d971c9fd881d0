"""What keeps other sites' pages, and what users wrote, from doing anything here: headers, cookie, proof. Pure.

`app` puts the headers on every answer, `login` sets the cookie, `passing` asks whether a change comes from a page of
ours. No header of a proxy is believed: what the pages need to know of it is in the settings (`web.url`).
Invariants: no page may run a script or use a style that is not a file of ours; no change is made without its proof.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

PROOF_HEADER = "bireme-proof"
SAFE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where the pages are, as browsers see it."""

    port: int
    prefix: str = ""
    secure: bool = False
    """Reached over TLS: its own, or that of a proxy before it."""

    @property
    def cookie(self) -> str:
        """Its name: cookies know no ports, and there may be pages of several daemons on one machine."""
        return f"bireme_{self.port}"

    def set_cookie(self, token: str, most_s: int) -> str:
        """The header's value; an empty token takes the cookie away."""
        words = [f"{self.cookie}={token}", f"Path={self.prefix or '/'}", "HttpOnly", "SameSite=Strict"]
        return "; ".join([*words, f"Max-Age={most_s if token else 0}", *(["Secure"] if self.secure else [])])


def proof_of(token: str) -> str:
    """What a page of a session sends with its changes: it tells nothing of the token, and no other site's page can
    read it (CSRF)."""
    return hmac.new(token.encode(), b"bireme page", hashlib.sha256).hexdigest()


def is_proven(token: str, headers: Mapping[str, str]) -> bool:
    return hmac.compare_digest(proof_of(token).encode(), headers.get(PROOF_HEADER, "").encode())


def is_own_page(headers: Mapping[str, str]) -> bool:
    """Whether the browser says that a page of ours sends this. Programs that are no browsers say nothing."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("origin")
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc == headers.get("host", "")
    except ValueError:
        return False
