"""Services from end to end: a real daemon, agents and router, and replicas that are small HTTP servers.

Every request is sent to the service's own address. What happens to replicas meanwhile must not be seen there.
"""

from __future__ import annotations

import json
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.support.cluster import Cluster, virtual_nodes

from bireme.client.sdk import Client
from bireme.client.services import Service, ServiceFailed

SERVER = """
import http.server, json, os, sys, time

class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path.startswith("/slow"):
            time.sleep(0.3)
        names = ("BIREME_SERVICE", "BIREME_REVISION", "BIREME_REPLICA", "SLURM_JOB_ID")
        told = json.dumps({**{name: os.environ.get(name) for name in names}, "version": sys.argv[1]}).encode()
        well = os.path.basename(self.path) != "health" or sys.argv[1] != "sick"
        self.send_response(200 if well else 500)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, *_):
        pass

print("loading", sys.argv[1], flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Answer).serve_forever()
"""
SCRIPT = """#!/bin/bash
#SBATCH --ntasks=1 --mem=64
#BIREME --health=/health --drain=10s --liveness="/alive period=1s timeout=5s"
exec python3 server.py "$1"
"""
CRASHES = '#!/bin/bash\n#BIREME --replicas=1\necho "RuntimeError: no such model"; exit 3\n'


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    one = Cluster(virtual_nodes(2, 0, cpus=16))
    (one.work / "server.py").write_text(SERVER)
    with one.running():
        yield one


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(str(cluster.home), patience_s=60.0) as made:
        yield made
        left = [made.service(record["name"], must_exist=False) for record in made.services()]
        for service in left:
            service.stop()
        for service in left:
            service.wait_gone(120)


def serve(cluster: Cluster, *words: str, version: str = "one", name: str = "chat") -> str:
    """`bireme serve`, until it is ready."""
    cluster.script(SCRIPT, f"{name}.sh")
    return cluster.bireme("serve", f"{name}.sh", "--wait", *words, "--", version).stdout


def ask(url: str, path: str = "", key: str = "") -> dict[str, Any]:
    """An answer of 200; raises HTTPError or URLError."""
    request = urllib.request.Request(url + path, headers={"Authorization": f"Bearer {key}"} if key else {})
    with urllib.request.urlopen(request, timeout=60) as answer:
        told: dict[str, Any] = json.load(answer)
        return told


class Traffic:
    """Requests one after another, by several at once, until told to end."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.versions: list[str] = []
        self.failures: list[str] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(path,)) for path in ("", "slow", "")]

    def _send(self, path: str) -> None:
        while not self._ended.is_set():
            try:
                self.versions.append(ask(self.url, path)["version"])
            except (OSError, ValueError) as error:
                self.failures.append(f"{path}: {error}")

    @contextmanager
    def flowing(self) -> Iterator[Traffic]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            for thread in self._threads:
                thread.join()
        assert not self.failures
        assert self.versions


def test_from_a_script_to_an_address_in_three_commands(cluster: Cluster, client: Client) -> None:
    told = serve(cluster, "--replicas=2")
    assert "Service chat: revision 1 is made." in told
    shown = json.loads(cluster.bireme("service", "show", "chat", "--json").stdout)
    assert (shown["state"], shown["wanted"], shown["ready"], shown["revision"]) == ("READY", 2, 2, 1)
    answers = [ask(shown["url"]) for _ in range(20)]
    assert {each["BIREME_SERVICE"] for each in answers} == {"chat"}
    # Not 1 and 2 for sure: a port that somebody else on this machine has costs a number.
    assert {each["BIREME_REPLICA"] for each in answers} == {str(each["number"]) for each in shown["replicas"]}
    jobs = {str(each["job_id"]) for each in shown["replicas"]}
    assert {each["SLURM_JOB_ID"] for each in answers} == jobs
    queue = cluster.run("squeue", "-h", "-o", "%i|%j|%k").stdout.splitlines()
    assert sorted(queue) == sorted(
        f"{each['job_id']}|chat|replica {each['number']} of service chat, revision 1" for each in shown["replicas"]
    )
    assert "READY" in cluster.bireme("services").stdout
    assert "none: it has all that it wants" in cluster.bireme("why", "chat").stdout
    assert f"==> replica {shown['replicas'][0]['number']}: " in cluster.bireme("service", "logs", "chat").stdout
    assert cluster.bireme("service", "stop", "chat", "--wait").stdout.endswith("Service chat is gone.\n")
    assert "over" in cluster.bireme("service", "logs", "chat").stdout, "also of one that is gone"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        ask(shown["url"])
    states = cluster.run("sacct", "-n", "-X", "-o", "state", "-j", ",".join(sorted(jobs))).stdout.split()
    assert all(state.startswith("CANCELLED") for state in states if state not in ("by", "0")), states
    assert "it is gone" in cluster.bireme("service", "events", "chat").stdout


def test_scaling_is_not_seen_by_who_asks(cluster: Cluster, client: Client) -> None:
    serve(cluster, "--replicas=1-4")
    service = client.service("chat")
    with Traffic(service.url).flowing():
        for wanted in (3, 1, 2):
            service.scale(wanted)
            assert service.wait_ready(60)["wanted"] == wanted
    until_replicas(cluster, service, 2)


def until_replicas(cluster: Cluster, service: Service, count: int) -> None:
    cluster.until(lambda: len(service.replicas) == count and service.ready == count)


def test_an_update_is_not_seen_but_in_what_is_answered(cluster: Cluster, client: Client) -> None:
    serve(cluster, "--replicas=2")
    service = client.service("chat")
    with Traffic(service.url).flowing() as traffic:
        told = serve(cluster, "--replicas=2", version="two")
        assert "revision 2 takes the place of revision 1" in told
        until_replicas(cluster, service, 2)
        before = len(traffic.versions)
        cluster.until(lambda: len(traffic.versions) > before + 20)
        assert set(traffic.versions[before:]) == {"two"}
        service.rollback()
        assert service.wait_ready(60)["serving"] == 1
    assert ask(service.url)["version"] == "one"


def test_a_revision_that_does_not_get_ready_is_taken_back(cluster: Cluster, client: Client) -> None:
    serve(cluster, "--replicas=2")
    service = client.service("chat")
    with Traffic(service.url).flowing() as traffic:
        cluster.script(SCRIPT, "chat.sh")
        words = ("serve", "chat.sh", "--replicas=2", "--startup-timeout=2s", "--wait", "--", "sick")
        refused = cluster.bireme(*words, check=False)
        assert refused.returncode == 1
        assert "revision 2 was given up" in refused.stderr
        until_replicas(cluster, service, 2)
    assert set(traffic.versions) == {"one"}
    assert "Revision 2 was given up" in cluster.bireme("why", "chat").stdout


def test_scancel_and_kill_of_a_replica_replace_it(cluster: Cluster, client: Client) -> None:
    serve(cluster, "--replicas=2")
    service = client.service("chat")
    before = {each["number"] for each in service.replicas}
    first, second = (each["job_id"] for each in service.replicas)
    cluster.run("scancel", str(first))
    cluster.until(lambda: first not in {each["job_id"] for each in service.replicas})
    assert service.wait_ready(60)["ready"] == 2
    cluster.run("scancel", "--signal", str(int(signal.SIGKILL)), "--full", str(second))
    cluster.until(lambda: second not in {each["job_id"] for each in service.replicas})
    assert service.wait_ready(60)["ready"] == 2
    assert before.isdisjoint(each["number"] for each in service.replicas)
    assert ask(service.url)["version"] == "one"


def test_a_crash_loop_is_held_back_and_told_with_its_last_words(cluster: Cluster, client: Client) -> None:
    cluster.script(CRASHES, "broken.sh")
    cluster.bireme("serve", "broken.sh")
    service = client.service("broken")
    cluster.until(lambda: service.state == "CRASHING")
    record = service.record()
    assert len(record["crashes"]) <= 3, "the second crash in a row is waited for"
    assert {crash["exit_code"] for crash in record["crashes"]} == {3}
    told = cluster.bireme("service", "show", "broken").stdout
    assert "exit code 3" in told
    assert "  | RuntimeError: no such model" in told
    assert (
        "no such model"
        in cluster.bireme("service", "logs", "broken", "-r", str(record["crashes"][0]["replica"])).stdout
    )
    serve(cluster, "--replicas=1", name="broken")
    assert service.state == "READY"
    assert ask(service.url)["BIREME_SERVICE"] == "broken"


def test_who_waits_for_a_first_revision_that_crashes_is_told_why(cluster: Cluster, client: Client) -> None:
    cluster.script(CRASHES, "broken.sh")
    done = cluster.bireme("serve", "broken.sh", "--canary=10%", "--wait", check=False)
    assert done.returncode == 1
    said = done.stderr.splitlines()
    assert said[0].startswith("bireme serve: --canary=10% is not applied: no revision serves yet")
    (error,) = [line for line in said if line.startswith("bireme serve: error: ")]
    assert error.startswith("bireme serve: error: revision 1 does not get ready: replica ")
    assert error.endswith("it ended by itself with exit code 3")
    assert "  | RuntimeError: no such model" in said
    with pytest.raises(ServiceFailed, match="revision 1 does not get ready: replica"):
        client.service("broken").wait_ready(120)
    logs = cluster.bireme("service", "logs", "broken").stdout
    assert "over " in logs.splitlines()[0]
    assert "it ended by itself with exit code 3" in logs.splitlines()[0]
    assert "RuntimeError: no such model" in logs


def test_a_service_that_was_scaled_to_none_by_hand_says_so_to_everybody(cluster: Cluster, client: Client) -> None:
    serve(cluster, "--replicas=0-2")
    service = client.service("chat")
    cluster.bireme("service", "scale", "chat", "0")
    cluster.until(lambda: not service.replicas, timeout=120)
    assert service.state == "PAUSED"
    how = "`bireme service scale chat 1` starts it again"
    for words in (("service", "show", "chat"), ("why", "chat")):
        assert how in " ".join(cluster.bireme(*words).stdout.split())
    with pytest.raises(urllib.error.HTTPError) as refusal:
        ask(service.url)
    assert refusal.value.code == 503
    assert how in json.load(refusal.value)["error"]["message"]
    assert not service.replicas, "no request wakes it"
    cluster.bireme("service", "scale", "chat", "1", "--wait")
    assert ask(service.url)["version"] == "one"


def test_the_address_that_is_told_can_be_used_at_once(make_cluster: Callable[..., Cluster]) -> None:
    """Also while the router is being started, which it is with the first service, and when it has to hear of more."""
    fresh = make_cluster(virtual_nodes(1, 0, cpus=4))
    (fresh.work / "server.py").write_text(SERVER)
    fresh.script(SCRIPT, "chat.sh")
    told = fresh.bireme("serve", "chat.sh", "--", "one").stdout
    (address,) = [line.split()[1] for line in told.splitlines() if line.startswith("  address")]
    assert ask(address)["version"] == "one"
    with Client(str(fresh.home), patience_s=60.0) as client:
        for number in range(5):
            service = client.serve(str(fresh.work / "chat.sh"), "two", name=f"chat{number}", chdir=str(fresh.work))
            assert ask(service.url)["version"] == "two"
            service.stop()


def test_replicas_and_addresses_outlive_the_daemon(cluster: Cluster, client: Client) -> None:
    serve(cluster, "--replicas=2")
    service = client.service("chat")
    before = {each["job_id"] for each in service.replicas}
    with Traffic(service.url).flowing() as traffic:
        cluster.kill_daemon()
        seen = len(traffic.versions)
        cluster.until(lambda: len(traffic.versions) > seen + 20)
        cluster.up_again()
        assert service.wait_ready(60)["ready"] == 2
        assert {each["job_id"] for each in service.replicas} == before
        service.scale(3)
        assert service.wait_ready(60)["ready"] == 3


def test_a_key_lets_in_and_without_it_nobody_is(cluster: Cluster, client: Client) -> None:
    serve(cluster)
    service = client.service("chat")
    made = cluster.bireme("service", "key", "add", "chat", "--note", "test").stdout.strip()
    cluster.until(lambda: refused(service.url, ""))
    assert ask(service.url, key=made)["version"] == "one"
    assert refused(service.url, f"{made[:-1]}_")
    (key,) = service.keys()
    cluster.bireme("service", "key", "revoke", "chat", key["id"])
    cluster.until(lambda: not refused(service.url, ""))


def refused(url: str, key: str) -> bool:
    try:
        ask(url, key=key)
    except urllib.error.HTTPError as error:
        return error.code in (401, 403)
    return False


def test_a_service_that_sleeps_is_woken_by_a_request(cluster: Cluster, client: Client) -> None:
    serve(cluster, "--replicas=0-1", "--idle=1s", "--down-delay=0s", "--stable-window=15s")
    service = client.service("chat")
    cluster.until(lambda: service.state == "ASLEEP" and not service.replicas, timeout=60)
    assert ask(service.url)["version"] == "one"
    assert service.ready == 1


def test_bad_services_are_told_before_anything_runs(cluster: Cluster, client: Client) -> None:
    cluster.script(SCRIPT, "chat.sh")
    for words, says in (
        (["--replicas=4-2"], "2-4 would work"),
        (["--name=../etc"], "etc would work"),
        (["--replcas=2"], "did you mean --replicas?"),
        (["--partition=nowhere"], "Invalid partition name specified"),
        (["--mem=10T"], "Memory specification can not be satisfied"),
    ):
        done = cluster.bireme("serve", "chat.sh", *words, check=False)
        assert done.returncode != 0
        assert says in done.stderr, done.stderr
    (cluster.work / "large.sh").write_bytes(b"#!/bin/sh\n#BIREME --name=" + b"x" * 10_000_000 + b"\ntrue\n")
    done = cluster.bireme("serve", "large.sh", check=False)
    assert done.returncode != 0
    assert len(done.stderr) < 1000
    assert client.services() == []


def test_the_script_of_a_service_is_a_batch_script_still(cluster: Cluster, client: Client) -> None:
    cluster.script(
        '#!/bin/bash\n#BIREME --replicas=2\necho "port ${PORT:-8000}, ${BIREME_SERVICE:-no service}"\n', "s.sh"
    )
    job = cluster.sbatch("s.sh")
    cluster.wait(job)
    assert cluster.output(job) == "port 8000, no service\n"
