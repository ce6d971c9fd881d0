"""Rows of the section `services` about what many services cost at rest, and how soon load is answered with a replica.

At rest: 100 services of three replicas each that nobody asks anything, on a real cluster: CPU of the daemon and of the
router together, over some seconds, and of the agents, who ask every replica whether it is well. Reaction: three
requests are in flight on a service with one replica for each four; then six are, within a second: how long until the
next replica is there to be placed, by the daemon's own record. `services` calls both.
"""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from bench.bireme_cluster import BiremeCluster
from bench.results import Row, Target
from bench.sizes import Sizes
from bireme.client.sdk import Client
from bireme.client.services import Service
from bireme.daemon import process

HOLDS = """#!{python} -IS
import os, signal, socket, threading
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
listener = socket.create_server(("0.0.0.0", int(os.environ["PORT"])), backlog=128)
def hold(peer):
    while peer.recv(65536):
        pass
while True:
    threading.Thread(target=hold, args=listener.accept()[:1], daemon=True).start()
"""
"""Takes requests and answers none of them."""
_REPLICAS = 3
_CALM, _DOUBLED, _FOR_EACH = 3, 6, 4
_PATIENCE_S = 300.0
_TICKS = os.sysconf("SC_CLK_TCK")


def at_rest(cluster: BiremeCluster, script: str, sizes: Sizes) -> Iterator[Row]:
    """Rows of the CPU that services cost which nobody asks anything."""
    count = sizes.service_idle
    with Client(cluster.home) as client:
        made = [client.serve(script, name=f"idle{number}", replicas=str(_REPLICAS)) for number in range(count)]
        until(lambda: _all_ready(client, count), f"{_REPLICAS} replicas of each of {count} services")
        watched = {"daemon and router": [*_daemon(cluster), *_router(cluster)], "agents": _agents(cluster)}
        before = {name: sum(map(_cpu_s, pids)) for name, pids in watched.items()}
        time.sleep(sizes.service_idle_s)  # what is measured is that nothing happens
        for name, pids in watched.items():
            share = (sum(map(_cpu_s, pids)) - before[name]) / sizes.service_idle_s * 100
            what = f"{count} services x {_REPLICAS} replicas, idle: CPU of {name}"
            yield Row("services", what, share, "%", target=Target("<", 3.0) if "daemon" in name else None)
        for service in made:
            service.stop()
        until(lambda: not client.services(), "the end of the services")


def _all_ready(client: Client, count: int) -> bool:
    records = client.services()
    return len(records) == count and all(each["ready"] == _REPLICAS for each in records)


def reaction(cluster: BiremeCluster, script: str, sizes: Sizes) -> Iterator[Row]:
    """The row of the time from a doubled load to one replica more."""
    spent = []
    with Client(cluster.home) as client:
        for number in range(sizes.service_reactions):
            service = client.serve(script, name=f"busy{number}", replicas="1-4", target_concurrency=str(_FOR_EACH))
            spent.append(_reacts_in_s(service))
            service.stop()
    yield Row(
        "services",
        "load doubles in a second, until another replica is asked for",
        statistics.median(spent),
        "s",
        target=Target("<", 3.0),
        details={"each_s": [round(one, 2) for one in spent]},
    )


def _reacts_in_s(service: Service) -> float:
    until(lambda: service.record()["ready"] == 1 and service.record()["url"], "its first replica")
    with _in_flight(service, _CALM):
        until(lambda: _counted(service) > _CALM * 0.98, "a steady load")
        doubled_at = time.monotonic()
        with _in_flight(service, _DOUBLED - _CALM):
            until(lambda: len(service.record()["replicas"]) > 1, "another replica")
            return time.monotonic() - doubled_at


def _counted(service: Service) -> float:
    """Requests at once, as the autoscaler sees them."""
    figures = service.record()["scaling"].get("figures", [])
    return float(figures[0]["stable"] or 0.0) if figures else 0.0


@contextmanager
def _in_flight(service: Service, count: int) -> Iterator[None]:
    """So many requests that nobody answers, as long as it lasts."""
    parts = urlsplit(service.record()["url"])
    with ExitStack() as stack:
        for _ in range(count):
            client = stack.enter_context(socket.create_connection((parts.hostname or "", parts.port or 80)))
            client.sendall(f"GET {parts.path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        yield


def until(is_so: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited in vain for {what}")
        time.sleep(0.05)


# --- whose CPU it is ------------------------------------------------------------------------------------------------


def _daemon(cluster: BiremeCluster) -> list[int]:
    pid = process.running_pid(cluster.home)
    assert pid is not None
    return [pid]


def _router(cluster: BiremeCluster) -> list[int]:
    """The supervisor and its workers."""
    home = f"{cluster.home}/router".encode()
    found = [pid for pid, words in _processes() if b"bireme.router" in words and any(home in word for word in words)]
    assert len(found) > 1, "a supervisor and a worker"
    return found


def _agents(cluster: BiremeCluster) -> list[int]:
    return [int(path.read_text()) for path in Path(cluster.home, "agents").glob("*/agent.pid")]


def _processes() -> Iterator[tuple[int, list[bytes]]]:
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            yield int(name), Path("/proc", name, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
