"""What a registry wants to be shown: nothing, a password (Basic), or a token that another server gives out (Bearer).

Used by `client`, from several threads. Invariant: a password goes to the registry that asks for it or to the server
that it names for tokens, and never without TLS to one that was reached with it.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from urllib.parse import urlencode, urlsplit

from bireme.images.refusing import RefusedError
from bireme.images.registry.credentials import Credentials, enroot_file, find
from bireme.images.registry.wire import UnreachableError, parts_of, request

_PARAMETER = re.compile(r'(\w+)="([^"]*)"')
_MOST_BYTES = 1 << 20


class Authority:
    """Of one registry and one image in it."""

    def __init__(self, host: str, name: str, scope: str, user: str, idle_s: float) -> None:
        self._host, self._name, self._scope, self._user, self._idle_s = host, name, scope, user, idle_s
        self._lock = threading.Lock()
        self._shown = ""
        self._used: Credentials | None = None

    @property
    def authorization(self) -> str:
        return self._shown

    def challenged(self, headers: Mapping[str, str], url: str, before: str) -> None:
        """The registry refused a request that showed `before`. Raises RefusedError: there is nothing else to show."""
        with self._lock:
            if self._shown != before:  # another thread has something newer
                return
            scheme, _, parameters = headers.get("www-authenticate", "").partition(" ")
            said = dict(_PARAMETER.findall(parameters))
            if scheme.lower() == "basic":
                self._used = find([self._host], self._user)
                shown = self._used.basic() if self._used is not None else ""
            elif scheme.lower() == "bearer" and "realm" in said:
                by = parts_of(said["realm"], self._host).hostname  # Enroot keeps Docker Hub under this name
                self._used = find([self._host, by or ""], self._user)
                shown = f"Bearer {self._token(said, url)}"
            else:
                raise RefusedError(f"{self._host} refuses {self._name} and does not say what it wants to be shown")
            if not shown or (shown == before):
                raise self.refused()
            self._shown = shown

    def refused(self) -> RefusedError:
        if self._used is None:
            whose = f" of {self._user}" if self._user else ""
            return RefusedError(
                f"{self._name} is not there, or needs a password{whose}: put `machine {self._host} login USER password "
                f"SECRET` into {enroot_file()}, or use `docker login {self._host}`"
            )
        return RefusedError(
            f"{self._host} does not let {self._used.user or 'you'} have {self._name}: the image is not there, or the "
            f"password in {self._used.source} is wrong"
        )

    def _token(self, said: Mapping[str, str], url: str) -> str:
        realm = said["realm"]
        if urlsplit(url).scheme == "https" and urlsplit(realm).scheme != "https":
            raise RefusedError(
                f"{self._host} wants a password to be sent without TLS (to {realm[:200]}): that is not done"
            )
        asked = {"service": said.get("service", ""), "scope": said.get("scope") or self._scope}
        asked = {name: value for name, value in asked.items() if value}
        used = self._used
        if used is not None and used.is_token:
            form = {"grant_type": "refresh_token", "refresh_token": used.secret, "client_id": "bireme", **asked}
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            answer = request(realm, headers, idle_s=self._idle_s, body=urlencode(form).encode())
        else:
            joined = "&" if "?" in realm else "?"
            basic = used.basic() if used is not None else ""
            answer = request(f"{realm}{joined}{urlencode(asked)}", {}, authorization=basic, idle_s=self._idle_s)
        with answer:
            if answer.status in (400, 401, 403):
                raise self.refused()
            if answer.status != 200:
                raise UnreachableError(
                    f"{urlsplit(realm).netloc} gives no token for {self._name} ({answer.status}): try again"
                )
            return self._read_token(answer.body(_MOST_BYTES))

    def _read_token(self, data: bytes) -> str:
        try:
            told = json.loads(data)
            token = told.get("token") or told.get("access_token")
        except (ValueError, AttributeError, RecursionError):
            token = None
        if not isinstance(token, str) or not token.isprintable():
            raise UnreachableError(f"the server that gives tokens for {self._host} cannot be understood: try again")
        return token
