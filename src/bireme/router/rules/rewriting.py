"""Heads as they are passed on: what was read, with what the router sets.

Bytes in, bytes out. Invariant: the framing that goes out is what was understood of the one that came in.
"""

from __future__ import annotations

from collections.abc import Iterable

from bireme.router.rules.heads import NO_LENGTH, Answer, Request

VIA = b"1.1 bireme"
_VIA_LINE = b"Via: " + VIA
_CLOSE = b"Connection: close"
_CHUNKED = b"Transfer-Encoding: chunked"


def forwarded(peer: bytes, proto: bytes, host: bytes, prefix: bytes) -> bytes:
    """The fields that are the same for all requests of a connection to a service, unless others passed it on."""
    lines = [b"X-Forwarded-For: " + peer, b"X-Forwarded-Proto: " + proto]
    if host:
        lines.append(b"X-Forwarded-Host: " + host)
    if prefix:
        lines.append(b"X-Forwarded-Prefix: " + prefix)
    return b"\r\n".join([*lines, _VIA_LINE])


def request_head(
    request: Request, target: bytes, block: bytes, credentials: Iterable[bytes], *, kept_expectation: bool
) -> bytes:
    """What the replica gets. `block`: of `forwarded`; `credentials`: lines that are not for the router."""
    parts = [b"%b %b HTTP/1.1\r\nHost: %b" % (request.method, target, request.host or b"")]
    parts += request.lines
    parts += credentials
    if request.chunked:
        parts.append(_CHUNKED)
    elif request.length != NO_LENGTH:
        parts.append(b"Content-Length: %d" % request.length)
    if request.upgrade:
        parts.append(b"Connection: upgrade\r\nUpgrade: " + request.upgrade)
    elif request.te_trailers:
        parts.append(b"Connection: TE\r\nTE: trailers")
    if request.expects and kept_expectation:
        parts.append(b"Expect: 100-continue")
    if request.forwarded_for:
        block = b"X-Forwarded-For: " + b", ".join(request.forwarded_for) + b", " + block.partition(b": ")[2]
    if request.via:
        parts.append(b"Via: " + b", ".join(request.via))
    parts += (block, b"", b"")
    return b"\r\n".join(parts)


def answer_head(answer: Answer, *, closing: bool, plain: bool = False) -> bytes:
    """What the client gets. `closing`: the connection ends with it; `plain`: it is not sent in chunks."""
    parts = [b"HTTP/1.1" + answer.reason]
    parts += answer.lines
    if answer.length != NO_LENGTH:
        parts.append(b"Content-Length: %d" % answer.length)
    elif answer.chunked and not plain:
        parts.append(_CHUNKED)
    if answer.status == 101:
        parts.append(b"Connection: upgrade\r\nUpgrade: " + answer.upgrade)
    elif closing:
        parts.append(_CLOSE)
    parts += (_VIA_LINE, b"", b"")
    return b"\r\n".join(parts)
