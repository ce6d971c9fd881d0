"""What the pages are to be, by the settings: where they are served, how people reach them, with which certificate.

Read by `keeper`. Invariant: nothing but loopback is listened at without TLS.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from bireme.daemon.settings import Settings, SettingsError, address_in

LOCAL_NAME = "bireme.localhost"
"""The host in addresses on loopback. Browsers know that it is this machine, and keep its cookies from whatever else is
served at 127.0.0.1: cookies know no ports, and what listens beside us there may be anybody's."""

_MOST_HOURS = 87_600


@dataclass(frozen=True, slots=True)
class WebPlan:
    mode: str
    host: str
    port: int
    """0: one that the kernel chooses."""
    url: str = ""
    """As people reach the pages, without a slash at the end; empty: where they are served."""
    tls_certificate: str = ""
    tls_key: str = ""

    @classmethod
    def of(cls, settings: Settings) -> WebPlan:
        """Raises SettingsError."""
        host, port = address_in("web.listen", settings.web_listen, "127.0.0.1:8700")
        tls = (settings.web_tls_certificate, settings.web_tls_key)
        if bool(tls[0]) != bool(tls[1]):
            raise SettingsError("web.tls_certificate and web.tls_key are given together, or neither is")
        if not ipaddress.ip_address(host).is_loopback and not tls[0]:
            raise SettingsError(
                f"web.listen: {settings.web_listen} can be reached from other machines: give web.tls_certificate and "
                "web.tls_key, or listen on loopback with a reverse proxy before it"
            )
        for key, hours in (
            ("web.session_hours", settings.web_session_hours),
            ("web.idle_hours", settings.web_idle_hours),
        ):
            if not 1 <= hours <= _MOST_HOURS:
                raise SettingsError(f"{key}: {hours} is not possible here: it must be from 1 to {_MOST_HOURS}")
        return cls(settings.web_pages, host, port, _url(settings.web_url), *tls)

    def check_certificate(self) -> None:
        """Whether browsers can be answered with it, as its files are now. Raises SettingsError."""
        if not self.tls_certificate:
            return
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.tls_certificate, self.tls_key, password="")
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise SettingsError(
                f"web.tls_certificate and web.tls_key: {self.tls_certificate} and {self.tls_key} are no certificate "
                f"and its key, both PEM and without a password: {error}"
            ) from error

    @property
    def prefix(self) -> str:
        """The path that all pages are below; empty: none."""
        return urlsplit(self.url).path

    def url_at(self, port: int) -> str:
        """What addresses begin with while the pages are served at this port."""
        if self.url:
            return self.url
        host = f"[{self.host}]" if ":" in self.host else self.host
        address = ipaddress.ip_address(self.host)
        if address.is_loopback:
            host = LOCAL_NAME
        elif address.is_unspecified:  # no certificate is for that
            host = socket.gethostname()
        return f"{'https' if self.tls_certificate else 'http'}://{host}:{port}"


def _url(text: str) -> str:
    """Raises SettingsError."""
    if not text:
        return ""
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.fragment)
        _ = parts.port
    except ValueError:
        good = False
    if not good or not text.isascii() or any(letter in text for letter in " \"'<>\\;%"):
        raise SettingsError(f"web.url: {text!r} is no address as https://gpus.example.org/bireme is")
    return text.rstrip("/")
