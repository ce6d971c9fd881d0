"""Messages between processes of ours as lines of JSON: the daemon and its agents, an agent and its keepers.

What they say is in `protocol` and `keeper_words`. Apart from `protocol`, because `srun` imports that one and must start
quickly: the encoder here is fast (an array of thousands of tasks is thousands of lines with a whole environment each)
and slow to import.
Invariant: text may hold any bytes a process environment may hold; they travel as lone surrogates.
"""

from __future__ import annotations

import json
from typing import Any, Generic, TypeVar, cast

import msgspec

from bireme.agent.messages.protocol import Message, ProtocolError
from bireme.store import codec

T = TypeVar("T")


def encode_line(message: Message) -> bytes:
    return codec.dumps(message) + b"\n"


def decode_line(line: bytes) -> Message:
    try:
        message = codec.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not JSON: {error}") from error
    if not isinstance(message, dict):
        raise ProtocolError("a message must be a JSON object")
    return message


def encode_typed(message: msgspec.Struct) -> bytes:
    """The line of a message that has a class."""
    try:
        return _encoder.encode(message) + b"\n"
    except UnicodeEncodeError:  # lone surrogates: only escapes can carry them
        return codec.dumps(msgspec.to_builtins(message)) + b"\n"


_encoder = msgspec.json.Encoder()


class LineReader(Generic[T]):
    """Makes messages of lines: of the one class, or of that of several which a line's tag names."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def __call__(self, line: bytes) -> T:
        """Raises ProtocolError for what is no such message."""
        try:
            return cast(T, self._decoder.decode(line))
        except msgspec.ValidationError as error:
            raise ProtocolError(str(error)) from error
        except (msgspec.DecodeError, UnicodeDecodeError):
            return self._with_surrogates(line)

    def _with_surrogates(self, line: bytes) -> T:
        """Only the parser of the standard library lets lone surrogates pass."""
        try:
            return cast(T, msgspec.convert(json.loads(line), self._kind, str_keys=True))
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"cannot be read: {error}") from error
