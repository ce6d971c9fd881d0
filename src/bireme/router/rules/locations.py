"""Where an answer leads: addresses of a server that does not know the prefix at which people reach it are put below it.

A service at `/chat/` is asked for `/`, so what it redirects to (`/login`, or the same with the host that it was asked
by) would be outside of it. Called by `replica_side` for answers with such fields to requests that came by a prefix.

Invariant: only an address of the service itself is changed; where it leads, seen from the service, stays the same.
"""

from __future__ import annotations

import re
from collections.abc import Container
from copy import copy

from bireme.router.rules.heads import LOCATIONS, Answer

_HOST = re.compile(rb"(?:https?:)?//([^/?#]*)", re.IGNORECASE)
_AFTER_PREFIX = (b"", b"/", b"?", b"#")


def below(answer: Answer, prefix: bytes, hosts: Container[bytes]) -> Answer:
    """The answer with its addresses below the prefix. `hosts`: what the service may call its own, in lower case."""
    found = copy(answer)  # this one is many answers' at once, of services with other prefixes too
    found.lines = [_line_below(line, prefix, hosts) for line in answer.lines]
    found.passed_on = b""
    return found


def _line_below(line: bytes, prefix: bytes, hosts: Container[bytes]) -> bytes:
    name, _, value = line.partition(b":")
    if name.lower() not in LOCATIONS:
        return line
    return name + b": " + address_below(value.strip(b" \t"), prefix, hosts)


def address_below(address: bytes, prefix: bytes, hosts: Container[bytes]) -> bytes:
    """Left alone: other hosts, what is below the prefix already, and what is relative to the address that was asked."""
    host = _HOST.match(address)
    if host is not None and host[1].lower() not in hosts:
        return address
    path = address if host is None else address[host.end() :]
    if host is not None and path[:1] != b"/":
        path = b"/" + path
    if path[:1] != b"/" or (path.startswith(prefix) and path[len(prefix) :][:1] in _AFTER_PREFIX):
        return address
    return prefix + path  # without a host: scheme and port are as the client knows them
