"""A kubelet that is asked over its socket: a server of HTTP/2 in this process, which answers as a test says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived, StreamEnded, WindowUpdated
from tests.unit.gather.clusters.test_pod_resources import GPU, held, pod

from bireme.gather.clusters import kubelet
from bireme.gather.clusters.kubelet import Kubelet
from bireme.gather.clusters.unary import CallError, call

METHOD = "/v1.Some/Thing"
MOST = 200_000
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]


def framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def answering(body: bytes, trailers: tuple[tuple[str, str], ...] = (("grpc-status", "0"),)) -> Serve:
    """Sends as much at once as the other side lets it, as a real server does."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        http.initiate_connection()
        left, asked, stream = body, False, 0
        while not writer.is_closing():
            writer.write(http.data_to_send())
            if not (data := await reader.read(65536)):
                break
            for event in http.receive_data(data):
                if isinstance(event, RequestReceived):
                    assert (":path", METHOD) in event.headers or (":path", kubelet.METHOD) in event.headers
                    stream = event.stream_id
                    http.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])
                asked = asked or isinstance(event, StreamEnded)
                if asked and stream and isinstance(event, StreamEnded | WindowUpdated):
                    while left and (room := min(http.local_flow_control_window(stream), 16384)):
                        http.send_data(stream, left[:room])
                        left = left[room:]
                    if not left:
                        http.send_headers(stream, trailers, end_stream=True)
                        stream = 0
        writer.close()

    return serve


def saying(data: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(data)
        writer.close()

    return serve


@asynccontextmanager
async def served(socket: Path, serve: Serve) -> AsyncIterator[None]:
    talks: list[asyncio.Task[None]] = []

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.append(asyncio.ensure_future(serve(reader, writer)))

    socket.unlink(missing_ok=True)
    async with await asyncio.start_unix_server(begin, socket):
        yield
        await asyncio.gather(*talks)


def asked(socket: Path, serve: Serve, timeout_s: float = 30.0) -> bytes:
    async def story() -> bytes:
        async with served(socket, serve):
            return await call(str(socket), METHOD, b"", timeout_s=timeout_s, most_bytes=MOST)

    return asyncio.run(story())


@pytest.mark.parametrize("length", [0, 5, 150_000], ids=["empty", "short", "longer than a window"])
def test_an_answer_comes_whole(tmp_path: Path, length: int) -> None:
    message = bytes(range(256)) * (length // 256 + 1)
    assert asked(tmp_path / "s", answering(framed(message[:length]))) == message[:length]


@pytest.mark.parametrize(
    ("serve", "says"),
    [
        (
            answering(b"", (("grpc-status", "12"), ("grpc-message", "no such%20call"))),
            "status 12.: no such call",
        ),
        (answering(framed(bytes(MOST))), "longer than 200000 bytes"),
        (answering(framed(b"four")[:-1]), "not one message"),
        (answering(b"\1" + framed(b"four")[1:]), "not one message"),
        (answering(framed(b""), (("x-other", "0"),)), "gRPC status not told"),
        (saying(b""), "closed the connection"),
        (saying(bytes(9)), "HTTP/2"),
    ],
)
def test_what_is_no_answer_is_said(tmp_path: Path, serve: Serve, says: str) -> None:
    with pytest.raises(CallError, match=says):
        asked(tmp_path / "s", serve)


def test_who_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the other side has enough of it
        writer.close()

    with pytest.raises(CallError, match=r"no answer in 0\.05 s"):
        asked(tmp_path / "s", hang, timeout_s=0.05)


def test_a_kubelet_that_is_away_has_taken_no_gpu_from_anybody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    socket = tmp_path / "kubelet.sock"
    asks = Kubelet(str(socket))
    mine = [held("GPU-a", "team/train-0")]

    async def story() -> None:
        assert await asks.held([GPU]) == []
        assert not caplog.records, "a node that is none of Kubernetes' has nothing to complain of"
        async with served(socket, answering(framed(pod("train-0", "GPU-a")))):
            assert await asks.held([]) == [], "a node without GPUs asks nobody"
            assert await asks.held([GPU]) == mine
        assert await asks.held([GPU]) == mine
        assert await asks.held([GPU]) == mine
        async with served(socket, saying(b"")):
            assert await asks.held([GPU]) == mine
        async with served(socket, answering(framed(b""))):
            assert await asks.held([GPU]) == []

    with caplog.at_level(logging.WARNING, "bireme.gather"):
        asyncio.run(story())
    assert len(caplog.records) == 2, "each problem is told once"
    assert all("does not say which pods have which GPUs" in record.getMessage() for record in caplog.records)
