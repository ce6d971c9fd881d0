"""One call of a gRPC service over a unix socket: a request out, one answer back, and the connection is closed.

HTTP/2 is spoken by h2, an extra. Called by `kubelet`, which imports this module when there is somebody to ask.
Not here: what request and answer mean (`pod_resources`); streams of messages; calls that share a connection.
Invariant: an answer is whole and its status is "ok", or CallError says why not.
"""

from __future__ import annotations

import asyncio
from urllib.parse import unquote

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import H2Error
from hpack.exceptions import HPACKError

_READ_BYTES = 64 * 1024
_PREFIX_BYTES = 5
"""Of each message: whether it is compressed, and its length."""


class CallError(OSError):
    """No answer, or none that can be used."""


async def call(socket: str, method: str, request: bytes, *, timeout_s: float, most_bytes: int) -> bytes:
    """The answer of `method` (`/SERVICE/NAME`). Raises OSError."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_unix_connection(socket)
            try:
                return await _Call(most_bytes).converse(reader, writer, method, request)
            finally:
                writer.close()
    except TimeoutError:
        raise CallError(f"no answer in {timeout_s:g} s") from None
    except (H2Error, HPACKError) as error:
        raise CallError(f"it does not speak HTTP/2 as it should: {error}") from error


class _Call:
    """What has come of an answer."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._http = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._body = bytearray()
        self._headers: dict[str, str] = {}
        """The trailers among them, in which a server says how the call went."""
        self._is_over = False

    async def converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, request: bytes
    ) -> bytes:
        self._http.initiate_connection()
        stream = self._http.get_next_available_stream_id()
        self._http.send_headers(stream, _headers(method))
        self._http.send_data(stream, b"\0" + len(request).to_bytes(4, "big") + request, end_stream=True)
        while not self._is_over:
            writer.write(self._http.data_to_send())
            data = await reader.read(_READ_BYTES)
            if not data:
                raise CallError("it closed the connection before its answer was whole")
            for event in self._http.receive_data(data):
                self._take(event)
        return self._answer()

    def _take(self, event: events.Event) -> None:
        if isinstance(event, events.ResponseReceived | events.TrailersReceived):
            self._headers |= {str(name): str(value) for name, value in event.headers}
        elif isinstance(event, events.DataReceived):
            self._body += event.data
            if len(self._body) > self._most_bytes:
                raise CallError(f"its answer is longer than {self._most_bytes} bytes")
            self._http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, events.StreamReset | events.ConnectionTerminated):
            raise CallError(f"it broke the call off (HTTP/2 error {event.error_code})")
        elif isinstance(event, events.StreamEnded):
            self._is_over = True

    def _answer(self) -> bytes:
        status = self._headers.get("grpc-status", "")
        if status != "0":
            why = unquote(self._headers.get("grpc-message", "")) or f"HTTP status {self._headers.get(':status', '?')}"
            raise CallError(f"it refuses (gRPC status {status or 'not told'}): {why[:300]}")
        message = bytes(self._body[_PREFIX_BYTES:])
        if self._body[:1] != b"\0" or int.from_bytes(self._body[1:_PREFIX_BYTES], "big") != len(message):
            raise CallError("its answer is not one message as it is")
        return message


def _headers(method: str) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]
