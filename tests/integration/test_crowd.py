"""One user cannot stop the others: attacks of one on a real daemon, and another's `squeue` while they stand.

Nothing is timed: each attack says when it stands, another user's commands are answered, and only then it is ended.
"""

from __future__ import annotations

import json
import os
import pwd
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.support.cluster import Cluster, virtual_nodes

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")

ATTACKER, ORDINARY = "nobody", "daemon"
CONNECTIONS = 1_100
FILES = 1_024
"""What one process may have open, where nobody said otherwise."""

PRELUDE = """
import json, resource, socket, sys
path = sys.argv[1]
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
def connect():
    while True:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(path)
            return sock
        except BlockingIOError:
            sock.close()
def ask(target, sock=None, method="GET", body=b""):
    sock = sock or connect()
    length = b"Content-Length: %d\\r\\n" % len(body) if method == "POST" else b""
    sock.sendall(b"%s %s HTTP/1.1\\r\\nHost: x\\r\\n%s\\r\\n" % (method.encode(), target, length) + body)
    return sock
def status(sock):
    received = b""
    while b"\\r\\n" not in received and (piece := sock.recv(65536)):
        received += piece
    return int(received[9:12])
def stand(*said):
    print(json.dumps(said), flush=True)
    sys.stdin.read()
"""


@contextmanager
def few_files() -> Iterator[None]:
    """This process may have few, as an ordinary shell."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(virtual_nodes(2, 0, cpus=8, settings="MaxArraySize=4000001"), for_everyone=True)
    for user in (ATTACKER, ORDINARY):
        (made.work / user).mkdir(mode=0o700)
        os.chown(made.work / user, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
    with few_files(), made.running():
        made.run("sbatch", "-H", "--array=0-999", "--wrap", "true", user=ATTACKER, cwd=made.work / ATTACKER)
        yield made


@contextmanager
def attack(cluster: Cluster, program: str) -> Iterator[str]:
    """A process of the attacker's that says what it saw once its attack stands, and stands until the end."""
    entry = pwd.getpwnam(ATTACKER)
    words = [cluster.python, "-c", PRELUDE + program, str(cluster.home / "run" / "api.sock")]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, user=entry.pw_uid, group=entry.pw_gid,
        extra_groups=[], cwd="/",
    ) as process:  # fmt: skip
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said, "the attack failed"
        yield said
        assert process.stdin is not None
        process.stdin.close()


def others_are_served(cluster: Cluster) -> None:
    where = cluster.work / ORDINARY
    assert "PENDING" in cluster.run("squeue", "-h", "-o", "%T", user=ORDINARY, cwd=where).stdout
    job = cluster.sbatch("-H", "--wrap", "true", user=ORDINARY, cwd=where)
    assert job in cluster.run("squeue", "-h", "-u", ORDINARY, "-o", "%i", user=ORDINARY, cwd=where).stdout.split()
    cluster.run("scancel", job, user=ORDINARY, cwd=where)


def test_jobs_have_the_limits_that_the_cluster_was_started_with(cluster: Cluster) -> None:
    """The daemon takes more descriptors for itself, and agents too; programs close every number below their limit."""
    for user in (None, ORDINARY):
        where = cluster.work / (user or "")
        told = cluster.run("srun", "-n1", "sh", "-c", "ulimit -Sn", user=user, cwd=where).stdout
        assert told == f"{FILES}\n"


def test_half_sent_requests(cluster: Cluster) -> None:
    half = f'many = [connect() for _ in range({CONNECTIONS})]\nfor each in many:\n  try: each.sendall(b"GET /v1/jo")\n'
    with attack(cluster, half + "  except OSError: pass\nstand()"):
        others_are_served(cluster)
        own = cluster.run("squeue", "-h", "-o", "%T", user=ATTACKER, cwd="/").stdout
        assert "PENDING" in own, "the attacker's own commands make room for themselves"


def test_half_sent_bodies(cluster: Cluster) -> None:
    """Fewer at a time than may wait at the door, and more only when a whole request was answered behind them: how many
    come inside depends on nobody's speed."""
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n{"
    program = (
        "many = []\n"
        "while (said := status(ask(b'/v1/ping'))) == 200:\n"
        "  for _ in range(64):\n"
        f"    many.append(connect()); many[-1].sendall({head!r})\n"
        "stand(said)"
    )
    with attack(cluster, program) as said:
        assert said == "[429]\n", "all of the attacker's connections are busy"
        others_are_served(cluster)


def test_answers_that_are_not_read(cluster: Cluster) -> None:
    with attack(cluster, "many = [ask(b'/v1/jobs') for _ in range(300)]\nstand()"):
        others_are_served(cluster)


def test_many_requests_at_once(cluster: Cluster) -> None:
    """They are asked again and again until the end: another's one request does not wait for all of them."""
    program = (
        "import select\n"
        "many = {each.fileno(): each for each in (ask(b'/v1/history?steps=1') for _ in range(200))}\n"
        "print([], flush=True)\n"
        "poll = select.poll()\n"
        "for each in [*many, 0]: poll.register(each, select.POLLIN)\n"
        "while True:\n"
        "  for fd, _ in poll.poll():\n"
        "    if not fd: sys.exit()\n"
        "    many[fd].recv(1 << 20) and ask(b'/v1/history?steps=1', many[fd])\n"
    )
    with attack(cluster, program):
        others_are_served(cluster)


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/v1/jobs?job=1_[0-4000000]", 200),
        ("/v1/history?job=1_[0-4000000],1_[0-4000000:3]", 200),
        ("/v1/priorities?job=1_[0-4000000]", 200),
        ("/v1/jobs/1_[0-4000000]", 404),
        ("/v1/nodes?nodes=n[0-99999999]", 400),
        ("/v1/jobs?fields=" + ",".join(f"f{number}" for number in range(5_000)), 400),
        ("/v1/jobs?x=" + "x" * 100_000, 431),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_large_expansions(cluster: Cluster, target: str, status: int) -> None:
    with attack(cluster, f"stand(status(ask({target.encode()!r})))") as said:
        assert said == f"[{status}]\n"
        others_are_served(cluster)


def test_deep_json(cluster: Cluster) -> None:
    program = "stand(status(ask(b'/v1/jobs', method='POST', body=b'[' * 1000000)))"
    with attack(cluster, program) as said:
        assert said == "[400]\n"
    others_are_served(cluster)


@pytest.mark.parametrize(
    "spec",
    [
        {"resources": {"constraint": "[[["}},
        {"resources": {"ntasks": 10**9, "overcommit": True}},
        {"resources": {"memory_per_cpu_mib": 10**30}},
        {"array": {"task_ids": [10**10, 1]}},
        {"begin_at": 1e308},
    ],
    ids=["constraint", "tasks", "memory", "array", "begin"],
)
def test_what_the_commands_would_not_send(cluster: Cluster, spec: dict[str, object]) -> None:
    """Refused, and the daemon lives: it was ended by the first of these."""
    body = json.dumps({"spec": spec, "script": "#!/bin/sh\n"}).encode()
    with attack(cluster, f"stand(status(ask(b'/v1/jobs', method='POST', body={body!r})))") as said:
        assert said == "[400]\n"
    others_are_served(cluster)
