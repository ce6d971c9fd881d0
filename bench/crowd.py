"""Rows `crowd`: many clients at once, and what an ordinary user notices of somebody who attacks the daemon or an agent.

Clients are threads of this process, each with a connection of its own. An attacker is a process of another user (as
root; else of this one), which says when its attack stands and goes on until it is ended. The ordinary user's figures
beside an attack are compared with those that the same calls had right before it.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import pwd
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection

import bireme
from bench import bireme_cluster
from bench.bireme_cluster import BiremeCluster
from bench.results import Row, Target
from bench.sizes import Sizes
from bench.submit import SCRIPT, fill_nodes
from bireme.client.transport import Transport

ATTACKER = "nobody"
PACE_S = 1.0
"""Each client asks once in so long: a program that polls, or somebody at a terminal."""

Attack = Callable[[BiremeCluster, Connection], None]


def measure(sizes: Sizes) -> Iterator[Row]:
    with bireme_cluster.running(bireme_cluster.this_host(sizes.cpus)) as cluster:
        os.chmod(cluster.folder, 0o711)
        fill_nodes(cluster)
        with bireme.Client(cluster.home) as client:
            client.submit_many([SCRIPT] * sizes.crowd_jobs)
        yield from _many_clients(cluster, sizes)
        for name, attack in _ATTACKS.items():
            usual = _percentile(_calls(cluster, sizes.crowd_calls))
            with _standing(cluster, attack):
                beside = _percentile(_calls(cluster, sizes.crowd_calls))
            target = Target("<", 2.0, of_ratio=True)
            yield Row("crowd", f"p99 beside {name}", beside * 1000, "ms", floor=usual * 1000, target=target)


def _many_clients(cluster: BiremeCluster, sizes: Sizes) -> Iterator[Row]:
    spent: dict[str, list[float]] = {"listing": [], "submitting": []}
    until = time.monotonic() + sizes.crowd_s

    def client(kind: str, number: int) -> None:
        with bireme.Client(cluster.home) as one:
            time.sleep(PACE_S * number / (sizes.crowd_listing + sizes.crowd_submitting))
            while time.monotonic() < until:
                begun = time.perf_counter()
                one.transport.get("/v1/jobs", {"user": "root"}) if kind == "listing" else one.submit(SCRIPT)
                spent[kind].append(time.perf_counter() - begun)
                time.sleep(max(0.0, PACE_S - (time.perf_counter() - begun)))

    kinds = ["listing"] * sizes.crowd_listing + ["submitting"] * sizes.crowd_submitting
    threads = [threading.Thread(target=client, args=(kind, number)) for number, kind in enumerate(kinds)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    beside = f"{sizes.crowd_listing} listing and {sizes.crowd_submitting} submitting clients"
    for kind, figures in spent.items():
        details = {"calls": len(figures), "slowest_s": max(figures)}
        yield Row(
            "crowd", f"{kind}, p99, {beside}", _percentile(figures), "s", target=Target("<", 0.5), details=details
        )


def _calls(cluster: BiremeCluster, count: int) -> list[float]:
    """What an ordinary user does, one after another, each with a connection of its own."""
    spent = []
    for _ in range(count):
        begun = time.perf_counter()
        with Transport(cluster.home, tool="bench") as transport:
            transport.get("/v1/jobs", {"job": "1"})
        spent.append(time.perf_counter() - begun)
    return spent


def _percentile(figures: list[float], part: float = 0.99) -> float:
    return sorted(figures)[min(len(figures) - 1, int(len(figures) * part))]


# -- attacks -----------------------------------------------------------------------------------------------------------


@contextmanager
def _standing(cluster: BiremeCluster, attack: Attack) -> Iterator[None]:
    forking = multiprocessing.get_context("fork")
    ours, theirs = forking.Pipe()
    process = forking.Process(target=_as_attacker, args=(cluster, attack, theirs), daemon=True)
    process.start()
    theirs.close()  # so that an attack that fails is an error here, and not a wait
    try:
        ours.recv()
        yield
    finally:
        process.kill()
        process.join()


def _as_attacker(cluster: BiremeCluster, attack: Attack, ready: Connection) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    if os.geteuid() == 0:
        entry = pwd.getpwnam(ATTACKER)
        os.setgroups([])
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    attack(cluster, ready)


def _connected(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    return sock


def _half_sent(cluster: BiremeCluster, ready: Connection, text: bytes, count: int = 1_100) -> None:
    """Connections that say half of something; who is cut off comes again."""
    path, kept, said = f"{cluster.home}/run/api.sock", [], False
    while True:
        with suppress(OSError):
            kept.append(_connected(path))
            kept[-1].sendall(text)
        if len(kept) >= count:
            if not said:
                ready.send("stands")
                said = True
            time.sleep(0.01)
            kept.pop(0).close()


def _heads(cluster: BiremeCluster, ready: Connection) -> None:
    _half_sent(cluster, ready, b"GET /v1/jo")


def _bodies(cluster: BiremeCluster, ready: Connection) -> None:
    _half_sent(cluster, ready, b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n{")


def _expansions(cluster: BiremeCluster, ready: Connection) -> None:
    with Transport(cluster.home, tool="bench") as transport:
        transport.get("/v1/jobs", {"job": "1_[0-4000000]"})
        ready.send("stands")
        while True:
            transport.get("/v1/jobs", {"job": "1_[0-4000000]"})


def _floods(cluster: BiremeCluster, ready: Connection) -> None:
    """The whole queue, asked for by 200 at once, again and again."""

    def ask() -> None:
        with Transport(cluster.home, tool="bench") as transport:
            while True:
                transport.get_bytes("/v1/jobs")

    threads = [threading.Thread(target=ask) for _ in range(200)]
    for thread in threads:
        thread.start()
    ready.send("stands")
    threads[0].join()


def _agent_socket(cluster: BiremeCluster, ready: Connection) -> None:
    """Connections to an agent's socket that say nothing."""
    kept = [socket.socket(socket.AF_UNIX) for _ in range(1_150)]
    for sock in kept:
        sock.setblocking(False)
        with suppress(OSError):  # it takes no more at the moment
            sock.connect(f"{_agent_folder(cluster)}/agent.sock")
    ready.send("stands")
    threading.Event().wait()


def _agent_folder(cluster: BiremeCluster) -> str:
    return f"{cluster.home}/agents/{bireme_cluster.host_name()}"


def _agent_lock(cluster: BiremeCluster, ready: Connection) -> None:
    """A lock on an agent's pid file, where it can be had."""
    with suppress(OSError):
        file = os.open(f"{_agent_folder(cluster)}/agent.pid", os.O_RDONLY)
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    ready.send("stands")
    threading.Event().wait()


_ATTACKS: dict[str, Attack] = {
    "1,100 half-sent requests": _heads,
    "1,100 half-sent bodies": _bodies,
    "a filter of four million tasks, again and again": _expansions,
    "200 connections that list the whole queue": _floods,
    "1,150 connections to an agent's socket": _agent_socket,
    "a lock on an agent's pid file": _agent_lock,
}
