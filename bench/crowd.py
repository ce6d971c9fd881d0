"""Rows `crowd`: many clients at once, and what an ordinary user notices of somebody who attacks the daemon or an agent.

Clients ask for what `squeue` and `sbatch` ask for, each over a connection of its own, and read the answer; this one
process speaks for all of them and does nothing else, so that the daemon is measured and not two hundred Pythons on its
cores. An attacker is a process of another user (as root; else of this one), which says when its attack stands and goes
on until it is ended. It is nice, for the same reason: whoever burns a machine's cores needs no daemon for that. The
ordinary user's figures beside an attack are compared with those that the same calls had right before it.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import json
import multiprocessing
import os
import pwd
import resource
import selectors
import socket
import statistics
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
SQUEUE_FIELDS = (
    "array_job_id,array_task_id,array_tasks,array_throttle,cluster,elapsed_s,het_job_id,het_offset,job_id,name,"
    "node_count,node_list,partition,priority,reason,state,user_name"
)
_NUMBERS = itertools.count()

Attack = Callable[[BiremeCluster, Connection], None]


def measure(sizes: Sizes) -> Iterator[Row]:
    with bireme_cluster.running(bireme_cluster.this_host(sizes.cpus)) as cluster:
        os.chmod(cluster.folder, 0o711)
        fill_nodes(cluster)
        with bireme.Client(cluster.home) as client:
            client.submit_many([SCRIPT] * sizes.crowd_jobs)
        yield from _many_clients(cluster, sizes)
        for name, attack in _ATTACKS.items():
            yield _beside(cluster, sizes, name, attack)
        with bireme.Client(cluster.home) as client:
            client.submit_many([SCRIPT] * (sizes.crowd_many_jobs - sizes.crowd_jobs))
        yield _beside(cluster, sizes, f"ten who ask why one of {sizes.crowd_many_jobs:,} jobs waits", _why)


def _beside(cluster: BiremeCluster, sizes: Sizes, name: str, attack: Attack) -> Row:
    """The usual calls and those beside an attack, in turns: what else the machine does falls on both."""
    usual: list[float] = []
    beside: list[float] = []
    for _ in range(sizes.crowd_rounds):
        usual += calls(cluster, sizes.crowd_calls)
        with _standing(cluster, attack):
            beside += calls(cluster, sizes.crowd_calls)
    details = {
        "calls": len(beside),
        "median_ms": statistics.median(beside) * 1000,
        "usual_median_ms": statistics.median(usual) * 1000,
        "slowest_ms": max(beside) * 1000,
    }
    target = Target("<", 2.0, of_ratio=True)
    floor = percentile(usual) * 1000
    return Row("crowd", f"p99 beside {name}", percentile(beside) * 1000, "ms", floor, target=target, details=details)


def _many_clients(cluster: BiremeCluster, sizes: Sizes) -> Iterator[Row]:
    listing = _request("GET", f"/v1/jobs?user=root&fields={SQUEUE_FIELDS}")
    with bireme.Client(cluster.home) as client:
        # Without an idempotency key: with the same one for all there would be one job, and nothing to write.
        submitting = _request("POST", "/v1/jobs", json.dumps(client._read(SCRIPT, (), {}).body).encode())
    kinds = [("listing", listing)] * sizes.crowd_listing + [("submitting", submitting)] * sizes.crowd_submitting
    spent = _polled(f"{cluster.home}/run/api.sock", kinds, sizes.crowd_s)
    beside = f"{sizes.crowd_listing} listing and {sizes.crowd_submitting} submitting clients"
    for kind, figures in spent.items():
        details = {"calls": len(figures), "median_s": statistics.median(figures), "slowest_s": max(figures)}
        yield Row("crowd", f"{kind}, p99, {beside}", percentile(figures), "s", target=Target("<", 0.5), details=details)


def _request(method: str, target: str, body: bytes = b"") -> bytes:
    length = f"content-length: {len(body)}\r\ncontent-type: application/json\r\n" if body else ""
    return f"{method} {target} HTTP/1.1\r\nhost: bireme\r\n{length}\r\n".encode() + body


def _polled(path: str, kinds: list[tuple[str, bytes]], lasts_s: float) -> dict[str, list[float]]:
    """Seconds of each call by kind, of clients that ask every `PACE_S`, spread over it, each over one connection."""
    spent: dict[str, list[float]] = {kind: [] for kind, _ in kinds}
    begun, ended = time.perf_counter(), 0
    due = [(begun + PACE_S * number / len(kinds), number) for number in range(len(kinds))]
    socks, asked_at = [_connected(path) for _ in kinds], [0.0] * len(kinds)
    received = [bytearray() for _ in kinds]
    with selectors.DefaultSelector() as ready:
        for number, sock in enumerate(socks):
            ready.register(sock, selectors.EVENT_READ, number)
        while ended < len(kinds):
            now = time.perf_counter()
            while due and due[0][0] <= now:
                _, number = heapq.heappop(due)
                if now - begun > lasts_s:
                    ended += 1
                    continue
                asked_at[number] = now
                socks[number].sendall(kinds[number][1])
            if ended == len(kinds):
                break
            for key, _ in ready.select(max(0.0, due[0][0] - now) if due else None):
                number = key.data
                received[number] += socks[number].recv(1 << 20)
                if _is_whole(received[number]):
                    now = time.perf_counter()
                    spent[kinds[number][0]].append(now - asked_at[number])
                    received[number].clear()
                    heapq.heappush(due, (max(now, asked_at[number] + PACE_S), number))
    for sock in socks:
        sock.close()
    return spent


def _is_whole(answer: bytearray) -> bool:
    head, gap, rest = answer.partition(b"\r\n\r\n")
    if not gap:
        return False
    if not answer.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(answer[:300].decode())
    if b"transfer-encoding: chunked" in head:
        return rest.endswith(b"\r\n0\r\n\r\n")
    return len(rest) == int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])


def calls(cluster: BiremeCluster, count: int) -> list[float]:
    """What an ordinary user does, one after another, each with a connection of its own, and none asked before."""
    spent = []
    for _ in range(count):
        begun = time.perf_counter()
        with Transport(cluster.home, tool="bench") as transport:
            transport.get("/v1/jobs", {"job": "1", "name": f"wrap,{next(_NUMBERS)}"})
        spent.append(time.perf_counter() - begun)
    return spent


def percentile(figures: list[float], part: float = 0.99) -> float:
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
    os.nice(19)
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


def _knocks(cluster: BiremeCluster, ready: Connection) -> None:
    """Connects and closes, as fast as it goes."""
    ready.send("stands")
    while True:
        with suppress(OSError):
            _connected(f"{cluster.home}/run/api.sock").close()


def _expansions(cluster: BiremeCluster, ready: Connection) -> None:
    with Transport(cluster.home, tool="bench") as transport:
        transport.get("/v1/jobs", {"job": "1_[0-4000000]"})
        ready.send("stands")
        while True:
            transport.get("/v1/jobs", {"job": "1_[0-4000000]"})


def _floods(cluster: BiremeCluster, ready: Connection) -> None:
    """The whole queue, asked for by 200 at once, again and again."""
    _asked_by(200, cluster, ready, "/v1/jobs")


def _why(cluster: BiremeCluster, ready: Connection) -> None:
    """Ten people who ask why a job waits, again and again."""
    _asked_by(10, cluster, ready, "/v1/jobs/2/why")


def _asked_by(people: int, cluster: BiremeCluster, ready: Connection, path: str) -> None:
    def ask() -> None:
        with Transport(cluster.home, tool="bench") as transport:
            while True:
                transport.get_bytes(path)

    threads = [threading.Thread(target=ask) for _ in range(people)]
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
    "connections that are closed at once, in a loop": _knocks,
    "a filter of four million tasks, again and again": _expansions,
    "200 connections that list the whole queue": _floods,
    "1,150 connections to an agent's socket": _agent_socket,
    "a lock on an agent's pid file": _agent_lock,
}
