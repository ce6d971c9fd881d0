"""Services of several users on root's cluster: each replica is its owner's, the router is the daemon's."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Iterator

import pytest
from tests.support.cluster import Cluster, virtual_nodes
from tests.support.serving import SERVER, listening_router, ready, shown, steady_load

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run jobs as other users")

ANN, BOB = "nobody", "daemon"
"""Two accounts that every system has."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(virtual_nodes(1, 0, cpus=8), for_everyone=True)
    made.variables["BIREME_ROUTER_WORKERS"] = "1"
    for user in (ANN, BOB):
        (made.work / user).mkdir(mode=0o700)
        os.chown(made.work / user, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
    with made.running():
        yield made


def serve_as(cluster: Cluster, user: str, name: str) -> int:
    """The pid of the one replica's server."""
    folder = cluster.work / user
    script = folder / f"{name}.py"
    script.write_text(SERVER.format(python=cluster.python, mark=user))
    os.chmod(script, 0o755)
    words = (cluster.python, "-m", "bireme", "serve", str(script), "--name", name, "--mem=100M")
    cluster.run(*words, user=user, cwd=folder)
    ready(cluster, 1, name=name)
    (pid,) = cluster.pids_with(f"BIREME_SERVICE={name}")
    return pid


@pytest.fixture(scope="module")
def anns(cluster: Cluster) -> int:
    return serve_as(cluster, ANN, "anns")


def uid_of(pid: int) -> int:
    return os.stat(f"/proc/{pid}").st_uid


def may_connect(path: str, user: str) -> bool:
    """Asked in a child that is this user."""
    child = os.fork()
    if child == 0:
        account = pwd.getpwnam(user)
        os.setgroups([])
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(path)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_replicas_run_as_their_owners_and_the_router_as_the_daemons_user(cluster: Cluster, anns: int) -> None:
    bobs = serve_as(cluster, BOB, "bobs")
    assert (uid_of(anns), uid_of(bobs)) == (pwd.getpwnam(ANN).pw_uid, pwd.getpwnam(BOB).pw_uid)
    about = listening_router(cluster)
    assert uid_of(about["pid"]) == os.geteuid()
    for name, user in (("anns", ANN), ("bobs", BOB)):
        with steady_load(shown(cluster, name)["url"]) as load:
            pass
        assert load.answers[0].split()[-1] == user.encode()


@pytest.mark.usefixtures("anns")
def test_nobody_else_may_speak_to_the_router_as_a_daemon_does(cluster: Cluster) -> None:
    listening_router(cluster)
    path = str(cluster.home / "router" / "router.sock")
    assert may_connect(path, "root")
    assert not may_connect(path, ANN)


@pytest.mark.usefixtures("anns")
def test_a_service_is_its_owners_to_change(cluster: Cluster) -> None:
    done = cluster.run(cluster.python, "-m", "bireme", "service", "stop", "anns", user=BOB, check=False)
    assert done.returncode
    assert "nobody" in done.stderr
