"""Where pods call this daemon: the gateway with its certificate, its key, and an address that pods can reach.

Opened by the engine when it starts. Everything is kept in the daemon's home, because pods that run know the port, the
certificate and a token of this key, and call again when the daemon is back.
Invariant: a daemon that comes back is found where the last one was, or says why it cannot be.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bireme.agent.system.descriptors import raise_limit
from bireme.engines.kubernetes.crossing.gateway import Deliver, Gateway, Provide
from bireme.engines.kubernetes.settings import KubernetesSettings
from bireme.own_certificate import ensure_certificate, ensure_key
from bireme.ports import Admit, EngineUnavailable


@dataclass(frozen=True, slots=True)
class Harbour:
    gateway: Gateway
    host: str
    port: int
    authority: str
    """The gateway's certificate, as PEM."""


async def open_harbour(
    home: Path, settings: KubernetesSettings, server: str, admit: Admit, deliver: Deliver, provide: Provide
) -> Harbour:
    """`home`: the daemon's. `server`: the API server's address. Raises EngineUnavailable."""
    raise_limit()  # each pod has a handful of connections, and a job may have thousands of pods
    folder = home / "kubernetes"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    certificate = folder / "gateway.pem"
    authority = ensure_certificate(certificate)
    sockets, key = folder / "pods", ensure_key(folder / "secret")
    gateway = Gateway(sockets, home / "nodes", key, certificate, admit, deliver, provide)
    port = await _listen(gateway, settings.gateway_port, folder / "port")
    return Harbour(gateway, settings.gateway_host or _own_address(server), port, authority)


async def _listen(gateway: Gateway, wanted: int, file: Path) -> int:
    """The port of the settings, else that of the last time: pods that run call there."""
    if not wanted and file.exists():
        wanted = int(file.read_text())
    try:
        port = await gateway.start("0.0.0.0", wanted)
    except OSError as error:
        raise EngineUnavailable(
            f"pods could not call this daemon: port {wanted} is not to be had ({error.strerror}); "
            "set another in kubernetes.gateway, when no job runs"
        ) from error
    file.write_text(str(port))
    return port


def _own_address(server: str) -> str:
    """This machine's address on the way to the API server: where that can be reached, pods usually can answer."""
    there = urlsplit(server)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((there.hostname or "127.0.0.1", there.port or 443))  # sends nothing
        return str(probe.getsockname()[0])
