"""Messages between the daemon and an agent as lines of JSON. What they say is listed in `protocol`.

Apart from `protocol`, because `srun` imports that one and must start quickly: the encoder here is fast (an array of
thousands of tasks is thousands of lines with a whole environment each) and slow to import.
Invariant: text may hold any bytes a process environment may hold; they travel as lone surrogates.
"""

from __future__ import annotations

from bireme.agent.protocol import Message, ProtocolError
from bireme.store import codec


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
