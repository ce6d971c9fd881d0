"""Who is on the other end: what the kernel and the databases say of a connected process."""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.api.conftest import Running

from bireme.api.routes import submissions
from bireme.api.serving.peers import SCOPE_KEY, Callers, Peer, groups_of_user, peer_of
from bireme.client.transport import Transport
from bireme.core.model.jobs import Owner
from bireme.core.model.refusals import Caller

MANY = 400
"""More groups than fit into what Python's getsockopt returns."""


def called(callers: Callers, peer: Peer) -> Caller:
    """As at the beginning of a request of this peer."""
    scope: dict[str, Any] = {SCOPE_KEY: peer}
    asyncio.run(callers.learn(scope))
    return callers.caller(scope)


def test_the_groups_of_the_connected_process_are_seen() -> None:
    one, other = socket.socketpair()
    with one, other:
        peer = peer_of(one)
    assert (peer.uid, peer.gid, sorted(peer.groups)) == (os.geteuid(), os.getegid(), sorted(os.getgroups()))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can choose its groups")
@pytest.mark.parametrize("count", [0, 1, 256, 257, MANY])
def test_however_many_groups_it_has(count: int) -> None:
    def look() -> str:
        os.setgroups(range(5000, 5000 + count))
        one, other = socket.socketpair()
        with one, other:
            return f"{sorted(peer_of(one).groups) == list(range(5000, 5000 + count))}"

    assert in_a_child(look) == "True"


def test_a_caller_has_the_groups_that_the_database_gives_its_user() -> None:
    """As Slurm: a shell that was opened before the user was put into the group does not matter."""
    member = next(((user, group) for group in grp.getgrall() for user in group.gr_mem if _known(user)), None)
    if member is None:
        pytest.skip("no group of this machine has a member")
    user, group = member
    entry = pwd.getpwnam(user)
    caller = called(Callers(0, frozenset(), lambda: 0.0), Peer(entry.pw_uid, entry.pw_gid, 0, (7,)))
    assert {entry.pw_gid, group.gr_gid, 7} <= set(caller.groups)
    assert group.gr_name in caller.group_names


def test_a_user_whom_the_database_does_not_know_has_the_groups_of_its_process_alone() -> None:
    assert groups_of_user(4_000_000_000) == ()
    caller = called(Callers(0, frozenset(), lambda: 0.0), Peer(4_000_000_000, 5, 0, (7,)))
    assert caller.groups == (5, 7)


def test_names_are_asked_for_once_a_minute_and_not_kept_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr("bireme.api.serving.peers.user_name", lambda uid: asked.append(uid) or f"u{uid}")
    now = [1_000.0]
    callers = Callers(0, frozenset({"u7"}), lambda: now[0])
    for job_id in (0, 4, 5):
        caller = called(callers, Peer(7, 7, 100 + job_id, (8,), job_id))
        assert caller.admin is (not job_id), "a job of an operator's is no operator"
    assert asyncio.run(callers.owner(Owner(uid=7, gid=7, user="u7", groups=(8,)))).user == "u7"
    assert asked == [7], "neither for each process nor for each job"
    now[0] += 61
    for uid in (8, 9):
        called(callers, Peer(uid, uid, 0))
    assert len(callers._known) == 2, "who was last seen a minute ago is forgotten"
    now[0] -= 3_600
    called(callers, Peer(9, 9, 0))
    assert asked == [7, 8, 9, 9]


def test_a_user_database_that_does_not_answer_keeps_nobody_but_those_it_is_asked_for(
    api: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answers = threading.Semaphore(0), threading.Event()

    def slow(uid: int) -> str:
        if uid == os.geteuid():
            asked.release()
            assert answers.wait(60)
        return f"u{uid}"

    monkeypatch.setattr("bireme.api.serving.peers.user_name", slow)
    ended: list[dict[str, Any]] = []

    def ask() -> None:
        with Transport(api.home, timeout_s=60) as transport:
            ended.append(transport.get("/v1/nodes"))

    waiting = [threading.Thread(target=ask) for _ in range(20)]
    for thread in waiting:
        thread.start()
    try:
        assert asked.acquire(timeout=30)
        assert get(api, Peer(4_000_000_000, 5, 0)).startswith(b"HTTP/1.1 200")
        assert not ended
    finally:
        answers.set()
        for thread in waiting:
            thread.join()
    assert len(ended) == 20
    assert not asked.acquire(blocking=False), "it was asked once for all of them"


def get(api: Running, peer: Peer) -> bytes:
    """What somebody else hears who lists the nodes."""
    ours, theirs = socket.socketpair()
    with ours:
        ours.settimeout(30)
        ours.sendall(b"GET /v1/nodes HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        api.loop.call_soon_threadsafe(api.server.adopt, theirs, peer)
        return ours.recv(65536)


def test_who_set_a_node_aside_is_named_and_asked_for_beside_the_loop(
    api: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    monkeypatch.setattr(
        "bireme.api.serving.peers.user_name", lambda uid: threads.append(threading.current_thread().name) or f"u{uid}"
    )
    api.transport.post("/v1/nodes/update", {"nodes": "n[1-2]", "state": "drain", "reason": "disk"})
    named = {node["reason_user"] for node in api.transport.get("/v1/nodes")["nodes"]}
    assert named == {f"u{os.geteuid()}"}
    assert len(threads) == 2, "one for the caller, one for the nodes"
    assert all(name.startswith("names") for name in threads)


def _known(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def in_a_child(action: Callable[[], str]) -> str:
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write_fd, action().encode())
        except BaseException as error:
            os.write(write_fd, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write_fd)
    with open(read_fd, encoding="utf-8") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


def test_the_owner_of_an_operators_submission_is_looked_up_beside_the_loop(
    api: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job or many: the user database may be slow."""
    known, asked = submissions._owner_of, list[str]()

    def asking(uid: int) -> dict[str, Any] | None:
        asked.append(threading.current_thread().name)
        return known(uid)

    monkeypatch.setattr(submissions, "_owner_of", asking)
    for_nobody = {"spec": {"name": "theirs"}, "uid": 65534, "script": "#!/bin/sh\n"}
    api.transport.post("/v1/jobs", for_nobody)
    many = api.transport.post("/v1/jobs", {"jobs": [for_nobody, for_nobody, {**for_nobody, "uid": 3_999_999_999}]})
    assert [job.spec.owner.uid for job in api.cluster.state.jobs.values()] == [65534] * 3
    assert many["jobs"][2]["error"]["message"] == "Invalid user id"
    assert len(asked) == 3
    assert all(name.startswith("names") for name in asked)
