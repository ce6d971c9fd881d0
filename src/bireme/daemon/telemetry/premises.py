"""What the door of other machines' gatherers keeps in the home: its certificate, the key of tokens, and its port.

Made by the daemon, or by `bireme node token` before it: whichever comes first. All of it is the daemon's user's alone.
Invariant: a daemon that comes back is found where the last one was, and knows the tokens that were given out.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from bireme.daemon.telemetry.tokens import Tokens
from bireme.gather.dialling import Pass, host_and_port
from bireme.own_certificate import ensure_certificate, ensure_key

_ANYWHERE = ("0.0.0.0", "::")


class NoAddressError(ValueError):
    """Where nodes reach the daemon is not known; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Premises:
    """In `folder`, which is private."""

    folder: Path

    @classmethod
    def at(cls, folder: str) -> Premises:
        """Made if it is not there. Raises OSError."""
        os.makedirs(folder, mode=0o700, exist_ok=True)
        return cls(Path(folder))

    @property
    def certificate_file(self) -> Path:
        """With its key; made if it is not there."""
        ensure_certificate(self._certificate)
        return self._certificate

    @property
    def tokens(self) -> Tokens:
        return Tokens(ensure_key(self.folder / "secret"))

    def wanted_port(self, port: int) -> int:
        """The one that the settings say, else that of the last time: nodes know it."""
        file = self.folder / "port"
        return port or (int(file.read_text()) if file.exists() else 0)

    def remember_port(self, port: int) -> None:
        (self.folder / "port").write_text(str(port))

    def pass_for(self, nodes: str, listen: str, address: str = "") -> Pass:
        """What a node of these needs. `listen`: the setting; `address`: how nodes reach this machine, where the
        setting does not say it. Raises NoAddressError or TokenError."""
        certificate = ensure_certificate(self._certificate)
        return Pass(
            address=address or self._address(listen), certificate=certificate, token=self.tokens.made_for(nodes)
        )

    @property
    def _certificate(self) -> Path:
        return self.folder / "door.pem"

    def _address(self, listen: str) -> str:
        host, port = host_and_port(listen)
        port = self.wanted_port(port)
        if host in _ANYWHERE or not port:
            raise NoAddressError("say with --address HOST:PORT how nodes reach this daemon")
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
