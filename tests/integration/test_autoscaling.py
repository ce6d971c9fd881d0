"""A service that scales with its traffic beside training, on a real daemon, router, agents and jobs.

Requests are held by the replicas until the test opens a gate: so many are in flight as the test sent.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import prometheus
import pytest
from tests.support.cluster import Cluster, virtual_nodes
from tests.support.ports import free_port

SERVER = """#!{python} -IS
import os, signal, socket, threading, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
listener = socket.create_server(("0.0.0.0", int(os.environ["PORT"])), backlog=128)
answer = b"HTTP/1.1 200 OK\\r\\nContent-Length: 4\\r\\nConnection: close\\r\\n\\r\\ndone"
def serve(peer):
    head = b""
    while b"\\r\\n\\r\\n" not in head:
        data = peer.recv(65536)
        if not data:
            return
        head += data
    if b"/metrics" in head.split(b"\\r\\n")[0]:
        text = b"depth " + open("{depth}", "rb").read()
        peer.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(text) + text)
        return
    while not os.path.exists("{gate}"):
        time.sleep(0.02)
    peer.sendall(answer)
while True:
    threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()
"""
CALM = ("--stable-window=6s", "--panic-window=2s", "--panic-threshold=100", "--down-delay=1s", "--drain=1s")
"""Windows as short as may be: a test does not wait for minutes."""
SOME_TIME_S = 120.0
SETTINGS = '[router]\naddress = "127.0.0.1:{router}"\nworkers = 1\n'


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """One node of four CPUs."""
    made = Cluster(virtual_nodes(1, 0, cpus=4))
    made.home.mkdir(mode=0o700)
    (made.home / "bireme.toml").write_text(SETTINGS.format(router=free_port()))
    with made.running():
        yield made


class Held:
    """A service whose requests are answered when the gate opens."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.gate, self.depth = cluster, folder / "gate", folder / "depth"
        self.depth.write_text("0\n")

    def serve(self, *flags: str) -> None:
        text = SERVER.format(python=self.cluster.python, gate=self.gate, depth=self.depth)
        script = str(self.cluster.script(text, "chat.py"))
        self.cluster.bireme("serve", script, "--name=chat", "--cpus-per-task=1", "--mem=100M", *flags)

    @property
    def shown(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.cluster.bireme("service", "show", "chat", "--json").stdout)
        return found

    def until_ready(self, count: int) -> None:
        def is_so() -> bool:
            now = self.shown
            return (now["wanted"], now["ready"], len(now["replicas"])) == (count, count, count)

        self.cluster.until(is_so, SOME_TIME_S)

    @contextmanager
    def requests(self, count: int) -> Iterator[None]:
        """So many in flight; at its end the gate opens, and all of them are answered."""
        parts = urlsplit(self.shown["url"])
        with ExitStack() as stack:
            clients = [
                stack.enter_context(socket.create_connection((parts.hostname or "", parts.port or 80), SOME_TIME_S))
                for _ in range(count)
            ]
            for client in clients:
                client.sendall(f"GET {parts.path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            yield
            self.gate.touch()
            for client in clients:
                assert b"200 OK" in client.makefile("rb").read()


@pytest.fixture
def held(cluster: Cluster, tmp_path: Path) -> Held:
    tmp_path.chmod(0o755)
    return Held(cluster, tmp_path)


def state_of(cluster: Cluster, job_id: str) -> str:
    return cluster.run("squeue", "-h", "-j", job_id, "-o", "%T", check=False).stdout.strip()


def test_traffic_takes_cpus_from_training_and_gives_them_back(cluster: Cluster, held: Held) -> None:
    held.serve("--replicas=1-3", "--target-concurrency=2", *CALM)
    held.until_ready(1)
    training = cluster.sbatch("--requeue", "-c3", "--mem=100M", "--wrap", "sleep 1000")
    cluster.until_started(training)
    with held.requests(6):
        held.until_ready(3)
        assert state_of(cluster, training) == "PENDING"
        assert "requests at once, one replica for each 2" in held.shown["wanted_why"]
    held.until_ready(1)
    cluster.until(lambda: state_of(cluster, training) == "RUNNING", SOME_TIME_S)
    scaled = [each["data"]["wanted"] for each in story(cluster) if each["kind"] == "ServiceScaled"]
    assert scaled[0] > 1
    assert scaled[-1] == 1


def test_a_sleeping_service_is_woken_by_the_first_request_and_sleeps_again(cluster: Cluster, held: Held) -> None:
    held.serve("--replicas=0-2", "--idle=2s", *CALM)
    held.until_ready(0)
    with held.requests(1):
        held.until_ready(1)
    held.until_ready(0)


def test_a_metric_of_the_replicas_scales_them_and_a_dead_daemon_takes_none_away(cluster: Cluster, held: Held) -> None:
    held.serve("--replicas=1-3", "--target=depth=4", *CALM)
    held.until_ready(1)
    held.depth.write_text("7\n")
    cluster.until(lambda: held.shown["wanted"] == 3, SOME_TIME_S)  # two replicas tell of 14, and three are the most
    held.until_ready(3)
    held.depth.write_text("0\n")
    cluster.kill_daemon()
    cluster.up_again()
    assert held.shown["wanted"] == 3
    held.until_ready(1)


def test_the_minimum_of_a_shift_holds_without_any_load(cluster: Cluster, held: Held) -> None:
    held.serve("--replicas=0-3", "--at", "daily 00:00 min=2", "--idle=1s", *CALM)
    held.until_ready(2)
    cluster.until(lambda: held.shown["wanted_why"].startswith("the minimum of the shift"), SOME_TIME_S)


class QueueDepth(ThreadingHTTPServer):
    """An exporter of one number, for Prometheus to scrape."""

    value = 0

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert isinstance(self.server, QueueDepth)
            text = f"queue_depth {self.server.value}\n".encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), self.Handler)


@pytest.fixture
def depth() -> Iterator[QueueDepth]:
    with QueueDepth() as exporter:
        thread = threading.Thread(target=exporter.serve_forever)
        thread.start()
        yield exporter
        exporter.shutdown()
        thread.join()


@pytest.mark.skipif(prometheus.program("prometheus") is None, reason="python -m tests.prepare fetches Prometheus")
def test_what_a_real_prometheus_answers_scales_a_service_and_its_silence_takes_none_away(
    cluster: Cluster, held: Held, depth: QueueDepth, tmp_path: Path
) -> None:
    (no_rules := tmp_path / "rules.yml").write_text("groups: []\n")
    with prometheus.running(tmp_path, {"queue": [f"127.0.0.1:{depth.server_port}"]}, no_rules) as running:
        with open(cluster.home / "bireme.toml", "a") as settings:
            settings.write(f'[services]\nprometheus = "{running.url}"\n')
        cluster.run("scontrol", "reconfigure")
        held.serve("--replicas=1-3", "--query=sum(queue_depth)=10", *CALM)
        held.until_ready(1)
        depth.value = 25
        held.until_ready(3)
        assert "query sum(queue_depth)" in held.shown["wanted_why"]
    cluster.until(lambda: "no connection" in held.shown["scaling"]["why"], SOME_TIME_S)
    assert (held.shown["wanted"], held.shown["ready"]) == (3, 3)


def story(cluster: Cluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(cluster.bireme("service", "events", "chat", "--json").stdout)
    return found
