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
        if asked := _MODEL_IN_QUERY.search(query):
            return self._by_model.get(_text(asked[1].replace(b"+", b" "))) or Own.BY_MODEL
        return Own.BY_MODEL


def model_of_path(target: bytes) -> str:
    """NAME of `/v1/models/NAME`; empty for the list."""
    return _text(target.partition(b"?")[0].removeprefix(b"/v1/models").strip(b"/"))


class _Body(msgspec.Struct):
    model: str = ""


_decoder = msgspec.json.Decoder(_Body)
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
        return _decoder.decode(body).model
    except msgspec.DecodeError:
        # Half a pair of surrogates is good JSON (RFC 8259, 8.2), and what a client sends that cuts a text in an emoji.
        whole, count = _SURROGATE.subn(rb"\\ufffd", body)
        if not count:
            raise
        return _decoder.decode(whole).model


def _text(value: bytes) -> str:
    return unquote_to_bytes(value).decode(errors="replace")


def _end_of_word(target: bytes) -> int:
    end = target.find(b"/", 1)
    if end < 0:
        end = len(target)
    query = target.find(b"?", 1, end)
    return end if query < 0 else query


def _without_port(host: bytes) -> bytes:
    name, colon, port = host.rpartition(b":")
    return name if colon and port.isdigit() and not host.endswith(b"]") else host
