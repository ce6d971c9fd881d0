"""What a router process is told when it starts: where to listen, how many workers, and limits that hold for all.

Everything about services is in the table. Words of the command line; the supervisor hands them to its workers as JSON.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
from typing import Any

import msgspec

PORT = 8600


class Settings(msgspec.Struct, kw_only=True, frozen=True):
    """The settings of one router, as the daemon starts it with."""

    home: str
    """Its folder: the socket, the table, the lock."""
    host: str = "127.0.0.1"
    port: int = PORT
    """0: any that is free; `Welcome` says which."""
    workers: int = 0
    """0: one for two cores."""
    tls_certificate: str = ""
    tls_key: str = ""
    numbers_port: int = 0
    """Where Prometheus reads on loopback; 0: only over the router's socket."""
    most_connections: int = 10_000
    """Of clients, in all workers together ..."""
    most_of_one: int = 2_500
    """... and of one user of this machine, or from one address elsewhere."""
    head_s: float = 15.0
    """From the first byte of a request's head to its last; and from a connection to its first byte."""
    keep_alive_s: float = 75.0
    """A client's connection without a request."""
    pace_s: float = 30.0
    """In so many seconds a client has sent or taken at least `pace_bytes` of what it is to send or take."""
    pace_bytes: int = 4096
    replica_idle_s: float = 4.0
    """An unused connection to a replica is kept so long: less than the five seconds of common servers."""
    buffer_bytes: int = 262_144
    """Of an answer that its client has not taken yet, before its replica has to wait."""
    model_body_bytes: int = 67_108_864
    """The largest body in which a model is looked for."""
    held_bytes: int = 536_870_912
    """Of all bodies together that one worker holds until it knows their model or has a replica for them."""
    drain_s: float = 30.0
    """After SIGTERM requests in flight have so long."""

    @property
    def worker_count(self) -> int:
        return self.workers or max(1, (os.cpu_count() or 1) // 2)


_HELP = {
    "home": "the router's folder: its socket, table and lock",
    "host": "address to listen at; services without keys are for this machine only, whatever it is",
    "port": "port to listen at; 0: any that is free",
    "workers": "processes that share the port; 0: one for two cores",
    "tls_certificate": "PEM file with the certificate chain",
    "tls_key": "PEM file with its key",
    "numbers_port": "port on 127.0.0.1 where Prometheus reads; 0: only over the router's socket",
    "most_connections": "clients' connections in all",
    "most_of_one": "clients' connections of one user of this machine, or from one address elsewhere",
    "head_s": "seconds that a request's head may take",
    "keep_alive_s": "seconds that a client's connection is kept without a request",
    "pace_s": "in so many seconds a client sends or takes at least --pace-bytes",
    "pace_bytes": "see --pace-s",
    "replica_idle_s": "seconds that an unused connection to a replica is kept",
    "buffer_bytes": "bytes of an answer that are kept for a slow client before its replica has to wait",
    "model_body_bytes": "largest body in which a model is looked for",
    "held_bytes": "bytes of bodies that one worker holds before it has replicas for them",
    "drain_s": "seconds that requests in flight have after SIGTERM",
}


def from_words(words: list[str]) -> Settings:
    """Reads the command line; ends the process with a sentence where it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m bireme.router", description="Route requests to services.")
    for field in msgspec.structs.fields(Settings):
        required = field.default is msgspec.NODEFAULT
        default: Any = None if required else field.default
        kind = str if required else type(default)
        option = "--" + field.name.replace("_", "-")
        text = _HELP[field.name] + ("" if required or default == "" else f" (default: {default})")
        parser.add_argument(option, type=kind, required=required, default=default, help=text)
    settings = Settings(**vars(parser.parse_args(words)))
    if wrong := mistake(settings):
        parser.error(wrong)
    return settings


def mistake(settings: Settings) -> str:
    """What is wrong with these; empty when nothing is."""
    try:
        ipaddress.ip_address(settings.host)
    except ValueError:
        return f"--host is an IP address of this machine, not {settings.host!r}"
    if not 0 <= settings.port <= 65535 or not 0 <= settings.numbers_port <= 65535:
        return "a port is a number from 0 to 65535"
    if bool(settings.tls_certificate) != bool(settings.tls_key):
        return "--tls-certificate and --tls-key are given together"
    if settings.workers < 0 or settings.workers > 64:
        return "--workers is a number from 0 to 64"
    numbers = [value for value in msgspec.structs.astuple(settings) if isinstance(value, int | float)]
    if min(numbers) < 0 or settings.most_connections < 1 or settings.most_of_one < 1:
        return "times and limits are not below zero, and some connections must be allowed"
    return ""
