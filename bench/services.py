"""Section `services`: what people who send requests feel of a service's life, on a real cluster.

From zero: a request to a service without replicas, until its first byte, less what the replica itself needed from its
script's first line until it listened. Under load: requests that failed while a replica, a node or the daemon was killed
and while an update was rolled out, three replicas each time. At rest and how soon load is answered: `services_load`.
The machine's noise is in all of it; the medians count.
"""

from __future__ import annotations

import http.client
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.serving import SERVER, Load

from bench import bireme_cluster, services_load
from bench.bireme_cluster import BiremeCluster
from bench.restart import kill
from bench.results import Row, Target
from bench.sizes import Sizes
from bireme.client.sdk import Client

_PATIENCE_S = 120.0
_NODES, _CPUS = 3, 6
_CPUS_AT_REST = 600
"""Of the cluster with many services; virtual, as its nodes are."""
_STAMPED = SERVER.replace("import os, signal", "import time\nbegan = time.monotonic()\nimport os, signal", 1).replace(
    "said =", "open(os.environ['STAMPS'], 'w').write(f'{{began}} {{time.monotonic()}}')\nsaid =", 1
)


def measure(sizes: Sizes) -> Iterator[Row]:
    with _settings(BIREME_ROUTER_ADDRESS="127.0.0.1:0", BIREME_ROUTER_WORKERS="1"):
        with bireme_cluster.running(bireme_cluster.virtual_nodes(_NODES, _CPUS)) as cluster:
            yield from _from_zero(cluster, sizes.service_wakes)
            yield from _under_load(cluster, sizes.service_requests)
        with bireme_cluster.running(bireme_cluster.virtual_nodes(_NODES, _CPUS_AT_REST)) as cluster:
            holding = _script(cluster, services_load.HOLDS, "held")
            yield from services_load.reaction(cluster, holding, sizes)
            yield from services_load.at_rest(cluster, holding, sizes)


@contextmanager
def _settings(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# --- from zero ------------------------------------------------------------------------------------------------------


def _from_zero(cluster: BiremeCluster, times: int) -> Iterator[Row]:
    stamps = cluster.folder / "stamps"
    spent: list[float] = []
    with Client(cluster.home) as client:
        asleep = {"replicas": "0-1", "idle": "1s", "down_delay": "0s", "stable_window": "6s"}
        service = client.serve(
            _script(cluster, _STAMPED, "first"), name="sleeper", env={"STAMPS": str(stamps)}, drain="1s", **asleep
        )
        for _ in range(times):
            _until(lambda: not service.record()["replicas"], "the service to sleep")
            _until(lambda: service.record()["url"], "its router")
            sent = time.monotonic()
            _get(service.record()["url"])
            answered = time.monotonic()
            began, listens = map(float, stamps.read_text().split())
            spent.append((answered - sent - (listens - began)) * 1000)
        service.stop()
    median = statistics.median(spent)
    yield Row(
        "services",
        "from zero: first byte, less the replica's own start",
        median,
        "ms",
        target=Target("<", 200),
        details={"each_ms": [round(one, 1) for one in spent]},
    )


def _get(url: str) -> None:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_PATIENCE_S)
    connection.request("GET", parts.path)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"the service answered {answer.status}")


# --- under load -----------------------------------------------------------------------------------------------------


def _under_load(cluster: BiremeCluster, requests: int) -> Iterator[Row]:
    with Client(cluster.home) as client:
        service = client.serve(_script(cluster, SERVER, "first"), name="chat", replicas="3")
        _until(lambda: _is_whole(service.record(), 1), "three replicas")
        _until(lambda: service.record()["url"], "its router")
        url = service.record()["url"]
    for what, happens in _MISFORTUNES.items():
        load = Load(url)
        load.more(requests)
        happens(cluster)
        load.more(requests)
        load.stop()
        yield Row(
            "services",
            f"three replicas under load, {what}: failed requests",
            len(load.failures),
            "requests",
            target=Target("<", 1),
            details={"answered": len(load.answers), "failures": load.failures[:5]},
        )


def _kill_replica(cluster: BiremeCluster) -> None:
    _replaced(cluster, lambda replica: os.kill(_pid_of(cluster, replica["number"]), signal.SIGKILL))


def _kill_node(cluster: BiremeCluster) -> None:
    def end(replica: dict[str, Any]) -> None:
        agent = Path(cluster.home, "agents", replica["node"], "agent.pid")
        os.kill(int(agent.read_text()), signal.SIGKILL)

    _replaced(cluster, end)


def _replaced(cluster: BiremeCluster, end: Callable[[dict[str, Any]], None]) -> None:
    with Client(cluster.home) as client:
        service = client.service("chat")
        before = service.record()
        first = before["replicas"][0]
        end(first)
        _until(lambda: first["number"] not in _numbers(service.record()), "the replica to be gone")
        _until(lambda: _is_whole(service.record(), before["revision"]), "another replica")


def _kill_daemon(cluster: BiremeCluster) -> None:
    kill(cluster)
    cluster.start()
    with Client(cluster.home) as client:
        record = client.service("chat").record
        _until(lambda: _is_whole(record(), record()["revision"]), "its replicas to be known")


def _update(cluster: BiremeCluster) -> None:
    with Client(cluster.home) as client:
        service = client.serve(_script(cluster, SERVER, "next"), name="chat", replicas="3")
        _until(lambda: _is_whole(service.record(), service.record()["revision"]), "the update")


_MISFORTUNES: dict[str, Callable[[BiremeCluster], None]] = {
    "one is killed": _kill_replica,
    "a node is killed": _kill_node,
    "the daemon is killed": _kill_daemon,
    "an update is rolled out": _update,
}


def _numbers(record: dict[str, Any]) -> list[int]:
    return [replica["number"] for replica in record["replicas"]]


def _is_whole(record: dict[str, Any], revision: int) -> bool:
    """Three ready replicas of this revision, and no other."""
    good = [each for each in record["replicas"] if each["health"] == "ready" and each["revision"] == revision]
    return len(good) == 3 == len(record["replicas"])


def _script(cluster: BiremeCluster, text: str, mark: str) -> str:
    path = cluster.folder / f"{mark}.py"
    path.write_text(text.format(python=sys.executable, mark=mark))
    return str(path)


def _pid_of(cluster: BiremeCluster, replica: int) -> int:
    marks = {f"BIREME_REPLICA={replica}".encode(), f"BIREME_HOME={cluster.home}".encode()}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            variables = set(Path("/proc", name, "environ").read_bytes().split(b"\0"))
        except OSError:
            continue  # it ended, or is another's
        if marks <= variables:
            return int(name)
    raise RuntimeError(f"no process of replica {replica}")


def _until(is_so: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited in vain for {what}")
        time.sleep(0.02)
