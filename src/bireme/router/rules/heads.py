"""Heads of requests and answers: read strictly, so that nobody behind the router can read another message in them.

Called with everything up to the empty line. What it does not accept as written by RFC 9112 is refused, never mended: a
line without CR, a fold, a space before a colon, two lengths. Heads and lines that came before are remembered with what
they mean (clients and servers say the same things again and again), which makes this quicker than a parser in C that
calls back for each field, and leaves the bytes as they are; those that hold secrets are not. `tests/unit/router` holds
it against llhttp: what is accepted here is read alike there.

Invariant: `lines` holds what is passed on as it is: no hop-by-hop field, no framing, nothing that the router sets.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

MAX_HEAD_BYTES = 65_536
MAX_TARGET_BYTES = 16_384
MAX_LINES = 128
_MAX_LENGTH_DIGITS = 18

NO_LENGTH = -1


class HeadError(ValueError):
    """A head that is refused: with which status, and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


class Request:
    """A request's head. It may be many requests' at once, and is not changed when it has been read."""

    __slots__ = (
        "chunked", "close", "credentials", "expects", "forwarded_for", "has_body", "host", "length", "lines", "method",
        "minor", "named", "passed_on", "route", "target", "te_trailers", "upgrade", "via",
    )  # fmt: skip

    def __init__(self, method: bytes, target: bytes, minor: int) -> None:
        self.method = method
        self.target = target
        self.minor = minor
        """Of the version: 0 or 1."""
        self.lines: list[bytes] = []
        self.host: bytes | None = None
        self.length = NO_LENGTH
        self.chunked = False
        self.close = minor == 0
        self.upgrade = b""
        self.expects = False
        self.te_trailers = False
        self.credentials: list[tuple[bytes, bytes, bytes]] = []
        """(field name in lower case, value, line) of what may be a key."""
        self.forwarded_for: list[bytes] = []
        self.via: list[bytes] = []
        self.named: list[bytes] = []
        """What `Connection` names: fields that are for this hop only."""
        self.has_body = False
        self.route: tuple[Any, Any] = (None, None)
        """(a directory, where this leads in it); `client_side` remembers it here."""
        self.passed_on: tuple[Any, bytes] = (None, b"")
        """(the block that was set, the head as a replica got it); the same."""

    def value(self, name: bytes) -> bytes | None:
        """Of the first field that is passed on and has this name (in lower case)."""
        for line in self.lines:
            if line[: len(name)].lower() == name and line[len(name) : len(name) + 1] == b":":
                return line[len(name) + 1 :].strip(b" \t")
        return None


class Answer:
    """An answer's head. It may be many answers' at once, and is not changed when it has been read."""

    __slots__ = (
        "chunked", "close", "leads", "length", "lines", "minor", "named", "passed_on", "reason", "status", "upgrade"
    )  # fmt: skip

    def __init__(self, minor: int, status: int, reason: bytes) -> None:
        self.minor = minor
        self.status = status
        self.reason = reason
        """The status line behind the version, as it came."""
        self.lines: list[bytes] = []
        self.length = NO_LENGTH
        self.chunked = False
        self.close = minor == 0
        self.upgrade = b""
        self.leads = False
        """It has one of LOCATIONS."""
        self.named: list[bytes] = []
        self.passed_on = b""
        """The head as a client got it; `replica_side` remembers it here."""


class _Meaning(NamedTuple):
    kind: int
    value: bytes


_PASS, _DROP, _HOST, _CONNECTION, _LENGTH, _ENCODING, _TE = range(7)
_UPGRADE, _EXPECT, _CREDENTIAL, _FOR, _VIA, _LOCATION = range(7, 13)

_OF_REQUESTS = {
    b"host": _HOST,
    b"connection": _CONNECTION,
    b"content-length": _LENGTH,
    b"transfer-encoding": _ENCODING,
    b"te": _TE,
    b"upgrade": _UPGRADE,
    b"expect": _EXPECT,
    b"authorization": _CREDENTIAL,
    b"api-key": _CREDENTIAL,
    b"x-api-key": _CREDENTIAL,
    b"x-forwarded-for": _FOR,
    b"via": _VIA,
    b"keep-alive": _DROP,
    b"proxy-connection": _DROP,
    b"proxy-authorization": _DROP,
    b"http2-settings": _DROP,
    b"forwarded": _DROP,
    b"x-forwarded-proto": _DROP,
    b"x-forwarded-host": _DROP,
    b"x-forwarded-port": _DROP,
    b"x-forwarded-prefix": _DROP,
    b"x-real-ip": _DROP,
}
_OF_ANSWERS = {
    b"connection": _CONNECTION,
    b"content-length": _LENGTH,
    b"transfer-encoding": _ENCODING,
    b"upgrade": _UPGRADE,
    b"keep-alive": _DROP,
    b"proxy-connection": _DROP,
    b"proxy-authenticate": _DROP,
    b"location": _LOCATION,
    b"content-location": _LOCATION,
}
LOCATIONS = frozenset(name for name, kind in _OF_ANSWERS.items() if kind == _LOCATION)
"""Fields that say where an answer leads."""
_PRIVATE = (b"cookie", b"set-cookie")
_SET_HERE = {b"host", b"content-length", b"transfer-encoding", b"connection"}
"""What `Connection` cannot have removed by naming it."""

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}) ([!-\"$-~]+) HTTP/1\.([01])")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01])( ([1-5][0-9][0-9])(?: [\t -~\x80-\xff]*)?)")
_LINE = re.compile(rb"(" + _TOKEN + rb"):[ \t]*((?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)[ \t]*")
_HOST_VALUE = re.compile(rb"(?:[A-Za-z0-9._~%!$&'()*+,;=-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
_DIGITS = re.compile(rb"[0-9]{1,%d}" % _MAX_LENGTH_DIGITS)
_UPGRADE_VALUE = re.compile(_TOKEN + rb"(?:/[!-~]+)?")

_ANSWERS_BEGIN = b"HTTP/1."

_REMEMBERED = 4096
_LONGEST_REMEMBERED = 256
_known_of_requests: dict[bytes, _Meaning] = {}
_known_of_answers: dict[bytes, _Meaning] = {}
_HEADS_REMEMBERED = 1024
_LONGEST_HEAD_REMEMBERED = 2048
_requests: dict[bytes, Request] = {}
_answers: dict[bytes, Answer] = {}


def read_request(head: bytes) -> Request:
    """`head`: all before the empty line. Raises HeadError."""
    remembered = _requests.get(head)
    if remembered is not None:
        return remembered
    request = _read_request(head)
    if len(head) <= _LONGEST_HEAD_REMEMBERED and not request.credentials and request.value(b"cookie") is None:
        if len(_requests) >= _HEADS_REMEMBERED:
            _requests.clear()
        _requests[head] = request
    return request


def _read_request(head: bytes) -> Request:
    lines = head.split(b"\r\n")
    first = _REQUEST_LINE.fullmatch(lines[0])
    if first is None:
        raise _bad_request_line(lines[0])
    method, target, minor = first.groups()
    if len(target) > MAX_TARGET_BYTES:
        raise HeadError(414, f"the request's address has more than {MAX_TARGET_BYTES} bytes")
    if len(lines) > MAX_LINES:
        raise HeadError(431, f"a request has at most {MAX_LINES} header fields")
    request = Request(method, target, 1 if minor == b"1" else 0)
    passed = request.lines.append
    known = _known_of_requests.get
    for line in lines[1:]:
        kind, value = known(line) or _meaning(line, _OF_REQUESTS, _known_of_requests)
        if kind == _PASS:
            passed(line)
        elif kind == _HOST:
            if request.host is not None:
                raise HeadError(400, "a request has one Host")
            request.host = value
        elif kind != _DROP:
            _note_of_request(request, kind, value, line)
    _check_request(request)
    return request


def read_answer(head: bytes) -> Answer:
    """`head`: all before the empty line. Raises HeadError, whose status is for the client."""
    remembered = _answers.get(head)
    if remembered is not None:
        return remembered
    answer = _read_answer(head)
    if len(head) <= _LONGEST_HEAD_REMEMBERED and b"set-cookie:" not in head.lower():
        if len(_answers) >= _HEADS_REMEMBERED:
            _answers.clear()
        _answers[head] = answer
    return answer


def may_begin_answer(data: bytes) -> bool:
    """Whether the rest of a head may follow. What will never be one is not waited for."""
    end = data.find(b"\n")
    return _ANSWERS_BEGIN.startswith(data[: len(_ANSWERS_BEGIN)]) and (end < 0 or data[end - 1] == 13)


def _read_answer(head: bytes) -> Answer:
    lines = head.split(b"\r\n")
    if len(lines) > MAX_LINES:
        raise HeadError(502, f"the replica's answer has more than {MAX_LINES} header fields")
    first = _STATUS_LINE.fullmatch(lines[0])
    if first is None:
        raise HeadError(502, "the replica's answer has no HTTP/1.1 status line")
    minor, reason, status = first.groups()
    answer = Answer(1 if minor == b"1" else 0, int(status), reason)
    passed = answer.lines.append
    known = _known_of_answers.get
    for line in lines[1:]:
        try:
            kind, value = known(line) or _meaning(line, _OF_ANSWERS, _known_of_answers)
        except HeadError as error:
            raise HeadError(502, f"the replica's answer: {error.why}") from error
        if kind == _PASS:
            passed(line)
        elif kind == _LENGTH:
            if answer.length not in (NO_LENGTH, length := _length(value, 502)):
                raise HeadError(502, "the replica's answer has two lengths")
            answer.length = length
        elif kind == _LOCATION:
            passed(line)
            answer.leads = True
        elif kind != _DROP:
            _note_of_answer(answer, kind, value)
    if answer.named:
        answer.lines = _without(answer.lines, answer.named)
    if answer.chunked and answer.length != NO_LENGTH:
        raise HeadError(502, "the replica's answer has a length and is chunked")
    return answer


def _meaning(line: bytes, kinds: dict[bytes, int], known: dict[bytes, _Meaning]) -> _Meaning:
    """What a line says that did not come before. Raises HeadError."""
    match = _LINE.fullmatch(line)
    if match is None:
        raise _bad_line(line)
    name, value = match.groups()
    name = name.lower()
    kind = kinds.get(name, _PASS)
    if kind == _PASS and b"_" in name and name.replace(b"_", b"-") in kinds:
        kind = _DROP  # behind gateways that make variables of fields it would be the other one
    if kind == _HOST and value and not _HOST_VALUE.fullmatch(value):
        raise HeadError(400, "Host is no host name")
    meaning = _Meaning(kind, value)
    if kind != _CREDENTIAL and name not in _PRIVATE and len(line) <= _LONGEST_REMEMBERED:
        if len(known) >= _REMEMBERED:
            known.clear()
        known[line] = meaning
    return meaning


def _note_of_request(request: Request, kind: int, value: bytes, line: bytes) -> None:
    if kind == _LENGTH:
        if request.length != NO_LENGTH:
            raise HeadError(400, "a request has one Content-Length")
        request.length = _length(value, 400)
    elif kind == _ENCODING:
        if request.chunked or value.lower() != b"chunked":
            raise HeadError(400 if request.chunked else 501, "the only Transfer-Encoding is chunked, once")
        request.chunked = True
    elif kind == _CONNECTION:
        for word in value.lower().split(b","):
            _note_connection(request, word.strip(b" \t"))
    elif kind == _TE:
        request.te_trailers |= b"trailers" in value.lower()
    elif kind == _UPGRADE:
        request.upgrade = value
    elif kind == _EXPECT:
        if value.lower() != b"100-continue":
            raise HeadError(417, "the only expectation is 100-continue")
        request.expects = True
    elif kind == _CREDENTIAL:
        request.credentials.append((line.partition(b":")[0].lower(), value, line))
    elif kind == _FOR:
        request.forwarded_for.append(value)
    else:
        request.via.append(value)


def _note_of_answer(answer: Answer, kind: int, value: bytes) -> None:
    if kind == _ENCODING:
        if answer.chunked or value.lower() != b"chunked":
            raise HeadError(502, "the replica's answer has a Transfer-Encoding other than chunked")
        answer.chunked = True
    elif kind == _UPGRADE:
        answer.upgrade = value
    else:
        for word in value.lower().split(b","):
            _note_connection(answer, word.strip(b" \t"))


def _note_connection(head: Request | Answer, word: bytes) -> None:
    if word == b"close":
        head.close = True
    elif word and word not in (b"keep-alive", b"upgrade", b"te") and word not in _SET_HERE:
        head.named.append(word)


def _check_request(request: Request) -> None:
    if request.method == b"CONNECT":  # what follows it is a tunnel to some readers, and a body to others
        raise HeadError(501, "a service is no proxy: CONNECT is not there")
    request.has_body = request.chunked or request.length > 0
    if request.named:
        request.lines = _without(request.lines, request.named)
    if request.host is None:
        if request.minor:
            raise HeadError(400, "a request of HTTP/1.1 has a Host")
        request.host = b""
    if request.chunked:
        if request.length != NO_LENGTH:
            raise HeadError(400, "a request has a Content-Length or is chunked, not both")
        if not request.minor:
            raise HeadError(400, "a request of HTTP/1.0 cannot be chunked")
    if request.upgrade:
        _check_upgrade(request)
    if request.target[:1] != b"/":
        _to_origin_form(request)


def _check_upgrade(request: Request) -> None:
    """Only what is no other HTTP, and without a body, is tunnelled; an offer may else be passed over."""
    if (
        request.minor == 0
        or request.has_body
        or not _UPGRADE_VALUE.fullmatch(request.upgrade)
        or request.upgrade.lower().startswith((b"h2", b"http", b"tls"))
    ):
        request.upgrade = b""


def _to_origin_form(request: Request) -> None:
    """`http://HOST/path` becomes `/path`. Raises HeadError."""
    scheme, separator, rest = request.target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        raise HeadError(400, "a request's address begins with a slash")
    end = min((at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0), default=len(rest))
    host, path = rest[:end], rest[end:]
    if not _HOST_VALUE.fullmatch(host) or (request.host and host.lower() != request.host.lower()):
        raise HeadError(400, "the request's address and its Host are of two hosts")
    request.host = host
    request.target = path if path.startswith(b"/") else b"/" + path


def _without(lines: list[bytes], names: list[bytes]) -> list[bytes]:
    return [line for line in lines if line.partition(b":")[0].lower() not in names]


def _length(value: bytes, status: int) -> int:
    if not _DIGITS.fullmatch(value):
        raise HeadError(status, "Content-Length is no number of bytes")
    return int(value)


def _bad_request_line(line: bytes) -> HeadError:
    words = line.split(b" ")
    if len(words) == 3 and re.fullmatch(rb"HTTP/[0-9]\.[0-9]", words[2]) and not words[2].startswith(b"HTTP/1."):
        return HeadError(505, "this is an HTTP/1.1 server")
    return HeadError(400, "the request line is not METHOD ADDRESS HTTP/1.1")


def _bad_line(line: bytes) -> HeadError:
    if line[:1] in (b" ", b"\t"):
        return HeadError(400, "a header field is on one line")
    if b"\n" in line or b"\r" in line:
        return HeadError(400, "lines end with CR LF")
    return HeadError(400, "a header field is NAME: VALUE, without control characters")
