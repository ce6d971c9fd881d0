"""The hand-written HTTP: every framing uvicorn may use, cut into pieces anywhere."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bireme.client.transport import ApiError, BiremeUnavailable, Transport, quote

Serve = Callable[..., str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts a server that gives these answers, one for each request, in pieces; returns its home."""
    (tmp_path / "run").mkdir()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "run" / "api.sock"))
    listener.listen()
    threads: list[threading.Thread] = []
    requests: list[bytes] = []

    def run(connections: list[list[list[bytes]]]) -> None:
        for answers in connections:
            connection, _ = listener.accept()
            with connection:
                for pieces in answers:
                    requests.append(connection.recv(100_000))
                    for piece in pieces:
                        connection.sendall(piece)

    def start(*connections: list[list[bytes]]) -> str:
        threads.append(threading.Thread(target=run, args=(list(connections),)))
        threads[-1].start()
        return str(tmp_path)

    start.requests = requests  # type: ignore[attr-defined]
    yield start
    for thread in threads:
        thread.join(10)
    listener.close()


def one_byte_at_a_time(answer: bytes) -> list[bytes]:
    return [answer[place : place + 1] for place in range(len(answer))]


LENGTH = b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"a": 1}'
CHUNKED = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{"a\r\n5;x=y\r\n": 1}\r\n0\r\nX: y\r\n\r\n'
TO_THE_END = b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"a": 1}'


@pytest.mark.parametrize("answer", [LENGTH, CHUNKED, TO_THE_END])
@pytest.mark.parametrize("pieces", [lambda answer: [answer], one_byte_at_a_time])
def test_each_framing_is_read(serve: Serve, answer: bytes, pieces: Callable[[bytes], list[bytes]]) -> None:
    assert Transport(serve([pieces(answer)])).get("/v1/x") == {"a": 1}


def test_a_connection_is_used_again(serve: Serve) -> None:
    transport = Transport(serve([[LENGTH], [CHUNKED], [LENGTH]]))
    assert [transport.get("/v1/x")["a"] for _ in range(3)] == [1, 1, 1]


def test_a_connection_that_the_daemon_closed_is_replaced(serve: Serve) -> None:
    transport = Transport(serve([[LENGTH]], [[LENGTH]]))
    transport.get("/v1/x")
    assert transport._kept is not None
    transport._kept._socket.settimeout(10)
    transport._kept._socket.recv(1, socket.MSG_PEEK)  # the end of the stream has arrived
    assert transport.post("/v1/x", {"b": 2}) == {"a": 1}


def test_an_answer_that_ends_early_is_no_answer(serve: Serve) -> None:
    for answer in (LENGTH[:-1], CHUNKED[:-9], LENGTH[:20]):
        with pytest.raises(BiremeUnavailable, match="ended in the middle"):
            Transport(serve([[answer]])).get("/v1/x")


def test_an_error_carries_slurms_words(serve: Serve) -> None:
    body = b'{"error":{"message":"Invalid job id specified","code":"ESLURM_INVALID_JOB_ID","slurm_errno":2017}}'
    head = f"HTTP/1.1 404 Not Found\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with pytest.raises(ApiError) as caught:
        Transport(serve([[head + body]])).get("/v1/x")
    error = caught.value
    assert (error.message, error.code, error.slurm_errno, error.status, error.hint) == (
        "Invalid job id specified", "ESLURM_INVALID_JOB_ID", 2017, 404, "",
    )  # fmt: skip


def test_an_error_without_words_names_its_status(serve: Serve) -> None:
    with pytest.raises(ApiError, match="HTTP status 500"):
        Transport(serve([[b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops"]])).get("/v1/x")


def test_what_is_sent(serve: Serve) -> None:
    transport = Transport(serve([[LENGTH], [LENGTH]]), tool="sbatch")
    transport.get("/v1/jobs/4_2", {"name": "a b+c&d/é", "none": None, "job": "1,2_[3]"})
    transport.post("/v1/x", {"k": "é"})
    first, second = serve.requests  # type: ignore[attr-defined]
    assert first == (
        b"GET /v1/jobs/4_2?name=a%20b%2Bc%26d/%C3%A9&job=1,2_[3] HTTP/1.1\r\nHost: bireme\r\nUser-Agent: sbatch\r\n\r\n"
    )
    assert second.endswith(b'Content-Type: application/json\r\nContent-Length: 14\r\n\r\n{"k":"\\u00e9"}')


def test_a_stream_gives_lines_as_they_come(serve: Serve) -> None:
    body = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none\n\r\n5\r\ntwo\r\n\r\n3\r\nend\r\n0\r\n\r\n"
    with Transport(serve([one_byte_at_a_time(body)])).stream("/v1/events") as stream:
        assert list(stream.lines()) == ["one", "two", "end"]


@pytest.mark.parametrize(("text", "quoted"), [("a-b.c_d~", "a-b.c_d~"), ("\udcff", "%FF"), ("?#", "%3F%23")])
def test_quoting(text: str, quoted: str) -> None:
    assert quote(text) == quoted


def test_who_finds_many_before_it_waits_in_the_row_and_not_for_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel lets one in after another; a pause would be longer than all of them take."""
    (tmp_path / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(tmp_path / "run" / "api.sock"))
        listener.listen(0)
        first.connect(listener.getsockname())  # the row is full

        def answer() -> None:
            while asking.read_text().rpartition(")")[2].split()[0] != "S":
                os.sched_yield()  # it has not come to wait yet
            listener.accept()[0].close()
            accepted, _ = listener.accept()
            with accepted:
                accepted.recv(65536)
                accepted.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

        asking = Path(f"/proc/self/task/{threading.get_native_id()}/stat")
        monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it was told to come again"))
        server = threading.Thread(target=answer, daemon=True)
        server.start()
        with Transport(str(tmp_path), timeout_s=20) as transport:
            assert transport.get("/v1/ping") == {}
        server.join()
