"""Which service a request is for: by its host name, by the first word of its path, or by the model it asks for.

`/-/health` and `/v1/models` are the router's own. Asked by `client_side` for every request. Invariant: a path is
compared as it came, without decoding or resolving anything: what it becomes behind the router is that service's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Generic, Protocol, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec


class Addressed(Protocol):
    """What is asked of a service here."""

    @property
    def name(self) -> str: ...
    @property
    def models(self) -> Sequence[str]: ...
    @property
    def hosts(self) -> Sequence[str]: ...


S = TypeVar("S", bound=Addressed)


class Own(Enum):
    """Addresses without a service."""

    HEALTH = "health"
    MODELS = "models"
    BY_MODEL = "by model"
    """The service is named by the body."""
    TWO_MODELS = "two models"
    """The address names more than one."""
    UNKNOWN = "unknown"


class Directory(Generic[S]):
    """All services, by every name that they are found by."""

    def __init__(self, services: Iterable[S]) -> None:
        self.services = tuple(services)
        self._by_name = {service.name.encode(): service for service in self.services}
        # Of two services with the same host name or model the first has it; a service's name is always its own.
        latest_first = self.services[::-1]
        self._by_host = {host.lower().encode(): service for service in latest_first for host in service.hosts}
        self._by_model = {model: service for service in latest_first for model in service.models}
        self._by_model |= {service.name: service for service in self.services}

    def find(self, host: bytes, target: bytes) -> tuple[S | Own, bytes, bytes]:
        """(the service, what it is asked for there, the prefix that was taken away)."""
        if self._by_host:
            named = self._by_host.get(_without_port(host.lower()))
            if named is not None:
                return named, target, b""
        end = _end_of_word(target)
        word = target[1:end]
        if word == b"v1":
            return self._openai(target, target[3:]), target, b""
        service = self._by_name.get(word)
        if service is None:
            return (Own.HEALTH if target == b"/-/health" else Own.UNKNOWN), target, b""
        rest = target[end:]
        return service, rest if rest[:1] == b"/" else b"/" + rest, target[:end]

    def by_model(self, model: str) -> S | None:
        return self._by_model.get(model)

    def the_only_one(self) -> S | None:
        return self.services[0] if len(self.services) == 1 else None

    def _openai(self, target: bytes, rest: bytes) -> S | Own:
        path, _, query = rest.partition(b"?")
        if path in (b"/models", b"/models/") or path.startswith(b"/models/"):
            return Own.MODELS
        asked = _MODEL_IN_QUERY.findall(query)
        if len(asked) > 1:
            return Own.TWO_MODELS
        return (self._by_model.get(_text(asked[0].replace(b"+", b" "))) if asked else None) or Own.BY_MODEL


def model_of_path(target: bytes) -> str:
    """NAME of `/v1/models/NAME`; empty for the list."""
    return _text(target.partition(b"?")[0].removeprefix(b"/v1/models").strip(b"/"))


class _Body(msgspec.Struct):
    model: str = ""


_decoder = msgspec.json.Decoder(_Body)
_ESCAPED_NAME = re.compile(rb'"[a-z]{0,4}\\u00[0-9A-Fa-f]{2}[^"]{0,40}"[ \t\r\n]*:')
"""It could be `model` in other letters."""
_MARK = re.compile(rb'["{}\[\]]')
_COLON = re.compile(rb"[ \t\r\n]*:")
_MOST_MARKS = 100_000
_LONGEST_NAME = 256
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_MODEL_IN_QUERY = re.compile(rb"(?:^|&)model=([^&]*)")
_MODEL_IN_FORM = re.compile(rb'\r\nContent-Disposition:[^\r]*;[ ]*name="?model"?[ ]*\r\n\r\n([^\r]{1,512})\r\n', re.I)


def model_of_body(body: bytes, content_type: bytes) -> str:
    """What a body names as its model; empty where it names none. Raises ValueError for what is no JSON object."""
    if content_type.lower().startswith(b"multipart/form-data"):
        found = _MODEL_IN_FORM.search(body)
        return _text(found[1]) if found else ""
    if not body.strip():
        return ""
    try:
        return _model_in_json(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"the body is no JSON object with a model: {error}") from error
    except RecursionError as error:
        raise ValueError("the body is JSON too deep to be read") from error


def _model_in_json(body: bytes) -> str:
    try:
        model = _decoder.decode(body).model
    except msgspec.DecodeError:
        # Half a pair of surrogates is good JSON (RFC 8259, 8.2), and what a client sends that cuts a text in an emoji.
        whole, count = _SURROGATE.subn(rb"\\ufffd", body)
        if not count:
            raise
        model = _decoder.decode(whole).model
    if (body.count(b'"model"') > 1 or _ESCAPED_NAME.search(body)) and _names_model_twice(body):
        raise ValueError("the body has two models, and each reader would take another")
    return model


def _names_model_twice(body: bytes) -> bool:
    """Whether the object, which is good JSON, has two members of this name; those of objects within it do not count.

    Only strings and brackets are looked at. Raises ValueError for what has too many of them.
    """
    depth = at = found = 0
    for _ in range(_MOST_MARKS):
        mark = _MARK.search(body, at)
        if mark is None:
            return found > 1
        at = mark.end()
        if mark[0] in b"{[":
            depth += 1
        elif mark[0] in b"}]":
            depth -= 1
        else:
            begin, at = at - 1, _end_of_string(body, at)
            if depth == 1 and at - begin <= _LONGEST_NAME and _COLON.match(body, at):
                found += msgspec.json.decode(body[begin:at]) == "model"
    raise ValueError("the body says `model` more than once, and is too complicated to be read for the first")


def _end_of_string(body: bytes, at: int) -> int:
    """Behind the quote that ends a string whose text begins here."""
    while True:
        at = body.index(b'"', at) + 1
        before = body[max(0, at - 1 - _LONGEST_NAME) : at - 1]
        escapes = len(before) - len(before.rstrip(b"\\"))
        if escapes == len(before) and at - 1 > escapes:  # nothing but backslashes, as far as one looks
            raise ValueError("the body has a text that is made of backslashes")
        if escapes % 2 == 0:
            return at


def _text(value: bytes) -> str:
    return unquote_to_bytes(value).decode(errors="replace")


def _end_of_word(target: bytes) -> int:
    end = target.find(b"/", 1)
    if end < 0:
        end = len(target)
    query = target.find(b"?", 1, end)
    return end if query < 0 else query


def _without_port(host: bytes) -> bytes:
    """Nor the dot at the end of a whole name."""
    name, colon, port = host.rpartition(b":")
    if colon and (port.isdigit() or not port):
        host = name
    return host[:-1] if host[-1:] == b"." else host
