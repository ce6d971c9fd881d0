"""A real router for tests, with a daemon's end of its socket, replicas on loopback, and clients that send bytes.

Everything waits for an event with one generous limit (`PATIENCE_S`); nothing sleeps for a guess.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from tests.support.looks import looks

from bireme.router import messages
from bireme.router.messages import AnyTold, Service, Table

PATIENCE_S = 120.0
T = TypeVar("T")


class ReplicaServer:
    """Answers requests on a port of its own, one thread for each connection."""

    def __init__(self, name: str = "r1") -> None:
        self.name = name
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.gone = threading.Semaphore(0)
        """Released when a client's end of a connection is seen to be closed in the middle of an answer."""
        self.arrived = threading.Semaphore(0)
        """Released with every request that was read."""
        self.gate = threading.Event()
        """What `/hold` and `/stream` wait for."""
        self.script = b""
        """What `/raw` answers."""
        self.server = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self.server.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> ReplicaServer:
        return self

    def __exit__(self, *_: object) -> None:
        """Answers what is held, and ends."""
        self.gate.set()
        self.stop()

    def row(self, **changes: Any) -> messages.Replica:
        """As a table has it."""
        return messages.Replica(**{"id": self.name, "host": "127.0.0.1", "port": self.port} | changes)

    def stop(self) -> None:
        """As a process that is killed: nobody listens, connections are reset."""
        with contextlib.suppress(OSError):
            self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.server.accept()
                self.connections += 1
                self._open.add(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), connection:
            reader = connection.makefile("rb")
            while head := _read_head(reader):
                self.heads.append(head)
                if b"\r\nexpect: 100-continue" in head.lower():
                    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                body = b"" if b"/early" in head else _read_body(reader, head)
                self.bodies.append(body)
                self.arrived.release()
                if not self._answer(connection, reader, head, body):
                    break
        self._open.discard(connection)

    def _answer(self, connection: socket.socket, reader: Any, head: bytes, body: bytes) -> bool:
        target = head.split(b" ")[1].partition(b"?")[0]
        if target == b"/raw":
            connection.sendall(self.script)
            return b"close" not in self.script.lower()
        if target == b"/hold":
            assert self.gate.wait(PATIENCE_S)
        if target == b"/stream":
            return self._stream(connection)
        if target == b"/die":
            return False
        if target == b"/early":
            connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
            return False
        if target == b"/socket":
            return self._tunnel(connection, reader)
        if target == b"/echo":
            answer = body
        elif target.startswith(b"/bytes/"):
            answer = bytes(range(256)) * (int(target[7:]) // 256)
        else:
            answer = json.dumps({"replica": self.name, "target": head.split(b" ")[1].decode()}).encode()
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-Replica: %b\r\n\r\n" % (
            len(answer), self.name.encode()
        ))  # fmt: skip
        if not head.startswith(b"HEAD"):
            connection.sendall(answer)
        return True

    def _stream(self, connection: socket.socket) -> bool:
        """One event, then after the gate another, and a trailer."""
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.sendall(b"8\r\ndata: 1\n\r\n")
        connection.settimeout(0.05)
        while not self.gate.is_set():
            if _is_gone(connection):
                self.gone.release()
                return False
        connection.settimeout(None)
        connection.sendall(b"8;x=y\r\ndata: 2\n\r\n0\r\nX-Sum: 3\r\n\r\n")
        return True

    def _tunnel(self, connection: socket.socket, reader: Any) -> bool:
        connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        while data := reader.read1(65536):
            connection.sendall(data.upper())
        self.gone.release()
        return False


def _is_gone(connection: socket.socket) -> bool:
    """Waits a moment for the other side to close."""
    try:
        return not connection.recv(1)
    except TimeoutError:
        return False
    except OSError:
        return True


def _read_head(reader: Any) -> bytes:
    lines = []
    while (line := reader.readline()) not in (b"\r\n", b""):
        lines.append(line)
    return b"".join(lines)


def _read_body(reader: Any, head: bytes) -> bytes:
    """As it came: with its chunks."""
    fields = dict(line.lower().split(b": ", 1) for line in head.splitlines()[1:])
    if fields.get(b"transfer-encoding") == b"chunked":
        body = b""
        while True:
            line = reader.readline()
            if not line:
                raise EOFError
            body += line
            size = int(line.split(b";")[0], 16)
            if not size:
                while line != b"\r\n":
                    line = reader.readline()
                    if not line:
                        raise EOFError
                    body += line
                return body
            body += reader.read(size + 2)
    size = int(fields.get(b"content-length", 0))
    body = reader.read(size)
    if len(body) < size:
        raise EOFError
    return body


class Router:
    """A router process, and a daemon's connection to it."""

    def __init__(self, home: Path, *words: str) -> None:
        self.home = home
        self.words = words
        self.serial = 0
        self.told: list[AnyTold] = []
        self._news = threading.Condition()
        self._socket: socket.socket | None = None
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "bireme.router", "--home", str(self.home), "--port", "0", *self.words]
        with open(self.home.parent / "router.log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.connect()

    def connect(self) -> messages.Welcome:
        """As a daemon that comes: says hello, and hears."""
        self.hang_up()
        path = str(self.home / messages.SOCKET)
        connection = socket.socket(socket.AF_UNIX)

        def is_there() -> bool:
            assert self.process.poll() is None, (self.home.parent / "router.log").read_text()
            with contextlib.suppress(OSError):
                connection.connect(path)
                return True
            return False

        until(is_there)
        self._socket = connection
        self.told = []
        threading.Thread(target=self._hear, args=(connection, self.told), daemon=True).start()
        connection.sendall(messages.encode(messages.Hello(speaker="test")))
        welcome = self.heard(messages.Welcome)
        self.port = welcome.port
        return welcome

    def hang_up(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            self._socket = None

    def _hear(self, connection: socket.socket, told: list[AnyTold]) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in connection.makefile("rb"):
                message = messages.read_told(line)
                assert message is not None
                with self._news:
                    told.append(message)
                    self._news.notify_all()

    def say(self, message: messages.Order) -> None:
        assert self._socket is not None
        self._socket.sendall(messages.encode(message))

    def push(self, *services: Service) -> None:
        """A new table; returns when it is gone by."""
        self.serial += 1
        serial = self.serial
        self.say(Table(serial=serial, services=services))
        self.heard(messages.Took, lambda took: took.serial == serial)

    def heard(self, kind: type[T], fits: Callable[[T], bool] = lambda _: True) -> T:
        """The first of this kind that fits, of those that came since the connection was made or will come."""
        found: list[T] = []

        def look() -> bool:
            found[:] = [each for each in self.told if isinstance(each, kind) and fits(each)]
            return bool(found)

        with self._news:
            assert self._news.wait_for(look, PATIENCE_S), f"no such {kind.__name__} in {self.told[-5:]}"
        return found[0]

    def load_of(self, service: str, fits: Callable[[messages.ServiceLoad], bool]) -> messages.ServiceLoad:
        """What a Load says of a service, when it fits."""

        def in_it(load: messages.Load) -> list[messages.ServiceLoad]:
            return [each for each in load.services if each.name == service and fits(each)]

        return in_it(self.heard(messages.Load, lambda load: bool(in_it(load))))[0]

    def workers(self) -> list[int]:
        path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        return [int(word) for word in Path(path).read_text().split()]

    def client(self) -> Client:
        return Client(self.port)

    def get(self, target: str, **fields: str) -> tuple[int, bytes, bytes]:
        """(status, body, head) of one request on a connection of its own."""
        with self.client() as client:
            client.send(request("GET", target, **fields))
            return client.answer()

    def stop(self) -> None:
        self.hang_up()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(2 * PATIENCE_S)  # requests in flight have half a minute


def request(method: str, target: str, body: bytes = b"", **fields: str) -> bytes:
    """A request of HTTP/1.1; `Content_Type="x"` is a field."""
    lines = [f"{method} {target} HTTP/1.1", "Host: test"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class Client:
    """A connection to a router, in bytes."""

    def __init__(self, port: int, source: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S, source_address=(source, 0))
        self.reader = self.socket.makefile("rb")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.reader.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def head(self) -> tuple[int, bytes]:
        head = _read_head(self.reader)
        return int(head.split(b" ")[1]) if head else 0, head

    def answer(self) -> tuple[int, bytes, bytes]:
        """(status, body, head); a chunked body with its chunks; status 0 when the connection ended instead."""
        status, head = self.head()
        while status == 100:
            status, head = self.head()
        return status, (_read_body(self.reader, head) if status not in (0, 204, 304) else b""), head

    def is_closed(self) -> bool:
        """Waits for the other side to close."""
        try:
            return self.reader.read(1) == b""
        except ConnectionResetError:
            return True


def until(question: Callable[[], bool]) -> None:
    """Waits until it is so."""
    for _ in looks(PATIENCE_S):
        if question():
            return
    raise AssertionError("it did not come to be")


@contextlib.contextmanager
def running(home: Path, *words: str) -> Iterator[Router]:
    router = Router(home, *words)
    try:
        yield router
    finally:
        router.stop()
        leftovers = [pid for pid in router_workers(home) if os.path.exists(f"/proc/{pid}")]
        assert not leftovers, f"workers are left behind: {leftovers}"
        assert "Traceback" not in (log := (home.parent / "router.log").read_text()), log


def router_workers(home: Path) -> list[int]:
    """Processes that were started for this home."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes()
                if b"bireme.router" in words and str(home).encode() in words:
                    found.append(int(entry.name))
    return found
