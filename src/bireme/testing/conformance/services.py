"""The third part of the conformance suite: services on a cluster that runs on the engine, reached as people reach them.

Scripts are served with `bireme serve`, answers come through the router, and what is said of a service is read from
`bireme service show --json`. Whoever writes an engine runs every check of `SERVICE_CHECKS` with `run_service_check`,
over the `Deployment` of the script half; its daemon's router must be reachable from where the suite runs.
Invariant: a check uses services and folders of its own, and stops what it served.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.request import urlopen

from bireme.testing.conformance.checks import Check, CheckList
from bireme.testing.conformance.programs import Program
from bireme.testing.conformance.scripts import Deployment, Session

SERVER = """\
import os, signal, socket, sys, threading
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
listener = socket.create_server(("0.0.0.0", int(os.environ["PORT"])), backlog=128)
said = " ".join((os.environ["BIREME_REPLICA"], os.environ["BIREME_REVISION"], sys.argv[1])).encode()
answer = b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\nConnection: close\\r\\n\\r\\n" % len(said) + said
def serve(peer):
    with peer:
        head = b""
        while b"\\r\\n\\r\\n" not in head:
            data = peer.recv(65536)
            if not data:
                return
            head += data
        peer.sendall(answer)
while True:
    threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()
"""
"""Says its replica's number, its revision's and a mark, to whatever it is asked."""
_ANSWER_S = 60.0


class ServiceSession(Session):
    """One check's services, and what their users see of them."""

    def __init__(self, cluster: Deployment, name: str) -> None:
        super().__init__(cluster, name)
        self._served: list[str] = []
        (self.folder / "server.py").write_text(SERVER)

    def close(self) -> None:
        for name in self._served:
            self.run("bireme", "service", "stop", name, check=False)
        self.until(lambda: not set(self._served).intersection(self.names()), "the end of the services")
        super().close()

    # -- doing ---------------------------------------------------------------------------------------------------------

    def serve(self, name: str, *flags: str, mark: str = "first", does: str = "") -> None:
        """`does`: lines of a bash script; none: the server above, which says `mark`."""
        script = self.folder / f"{name}.sh"
        serving = f"exec {self.cluster.python} -IS {self.folder / 'server.py'} {mark}"
        script.write_text(f"#!/bin/bash\n{does or serving}\n")
        if name not in self._served:
            self._served.append(name)
        self.run("bireme", "serve", str(script), "--name", name, "--drain=1s", *flags)

    def scale(self, name: str, count: int) -> None:
        self.run("bireme", "service", "scale", name, str(count))

    def ask(self, name: str) -> str:
        """What a replica answers through the router; a request that fails is an error."""
        with urlopen(self.shown(name)["url"], timeout=_ANSWER_S) as answer:
            return str(answer.read().decode())

    # -- seeing --------------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        listed = json.loads(self.run("bireme", "services", "--json").stdout)
        return [each["name"] for each in listed]

    def shown(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("bireme", "service", "show", name, "--json").stdout)
        return found

    def ready(self, name: str, count: int, revision: int = 1) -> list[dict[str, Any]]:
        """The replicas, once so many of this revision are ready and there are no others."""
        found: list[dict[str, Any]] = []

        def is_so() -> bool:
            found[:] = self.shown(name)["replicas"]
            return [(each["state"], each["revision"]) for each in found] == [("ready", revision)] * count

        self.until(is_so, f"{count} ready replica(s) of {name}")
        return found

    def asked_until(self, name: str, is_so: Callable[[dict[str, Any]], bool], what: str) -> list[str]:
        """Sends one request after another until the service stands so; what was answered. None may fail."""
        answers: list[str] = []

        def asked() -> bool:
            answers.append(self.ask(name))
            return is_so(self.shown(name))

        self.until(asked, what)
        return answers


ServiceBody = Callable[[ServiceSession], None]
SERVICE_CHECKS: CheckList[ServiceBody] = CheckList()


def run_service_check(check: Check[ServiceBody], cluster: Deployment) -> None:
    """Raises AssertionError, or NotApplicable with the reason."""
    check.require(places_by_itself=cluster.places_by_itself, inapplicable=cluster.inapplicable_to_services)
    unknown = [name for name in cluster.inapplicable_to_services if name not in SERVICE_CHECKS]
    assert not unknown, f"no such checks: {unknown}"
    session = ServiceSession(cluster, check.name)
    try:
        check.body(session)
    finally:
        session.close()


# -- replicas are jobs -------------------------------------------------------------------------------------------------


@SERVICE_CHECKS.say()
def a_service_is_jobs_behind_an_address_and_leaves_none_of_them(session: ServiceSession) -> None:
    session.serve("pair", "--replicas=2")
    replicas = session.ready("pair", 2)
    assert len({each["port"] for each in replicas}) == 2, "each has a port of its own"
    assert {session.ask("pair") for _ in range(10)} <= {f"{each['number']} 1 first" for each in replicas}
    jobs = sorted(str(each["job_id"]) for each in replicas)
    assert sorted(session.run("squeue", "-h", "-n", "pair", "-o", "%i").stdout.split()) == jobs
    session.run("bireme", "service", "stop", "pair", "--wait")
    assert "pair" not in session.names()
    for job in jobs:
        session.ended(job)
        session.until(partial(session.cluster.is_clear, job), f"no process of job {job}")


@SERVICE_CHECKS.say()
def a_replica_that_is_cancelled_is_replaced_and_no_other(session: ServiceSession) -> None:
    session.serve("kept", "--replicas=2")
    first, second = session.ready("kept", 2)
    session.run("scancel", str(first["job_id"]))
    session.until(lambda: first["number"] not in _numbers(session.shown("kept")), "its leaving")
    assert second["number"] in [each["number"] for each in session.ready("kept", 2)]
    assert session.ended(str(first["job_id"]))[0] == "CANCELLED"


@SERVICE_CHECKS.say()
def a_replica_that_lost_its_node_is_replaced(session: ServiceSession) -> None:
    session.serve("moved", "--replicas=1")
    (before,) = session.ready("moved", 1)
    session.cluster.restart_node(before["node"])
    session.until(lambda: before["number"] not in _numbers(session.shown("moved")), "its leaving")
    (after,) = session.ready("moved", 1)
    assert session.ask("moved") == f"{after['number']} 1 first"


# -- updates -----------------------------------------------------------------------------------------------------------


@SERVICE_CHECKS.say()
def an_update_is_seen_in_the_answers_alone(session: ServiceSession) -> None:
    session.serve("changed", "--replicas=2")
    session.ready("changed", 2)
    assert session.ask("changed").endswith(" 1 first")
    session.serve("changed", "--replicas=2", mark="second")
    session.asked_until("changed", lambda shown: _is_whole(shown, 2, 2), "the update")
    assert session.ask("changed").endswith(" 2 second")


@SERVICE_CHECKS.say()
def a_revision_that_does_not_get_ready_is_given_up_and_the_one_before_serves(session: ServiceSession) -> None:
    session.serve("proven", "--replicas=1")
    session.ready("proven", 1)
    session.serve("proven", "--replicas=1", "--ready-within=5s", does="exit 3")
    session.asked_until("proven", lambda shown: shown["revisions"][-1]["phase"] == "failed", "its being given up")
    session.ready("proven", 1)
    assert session.ask("proven").endswith(" 1 first")


# -- how many ----------------------------------------------------------------------------------------------------------


@SERVICE_CHECKS.say()
def a_request_wakes_a_service_that_sleeps(session: ServiceSession) -> None:
    windows = ("--stable-window=6s", "--panic-window=2s", "--down-delay=0s", "--idle=1s")
    session.serve("sleeper", "--replicas=0-1", *windows)
    session.until(lambda: _sleeps(session.shown("sleeper")), "its falling asleep")
    assert session.ask("sleeper").endswith(" 1 first")


@SERVICE_CHECKS.say()
def training_makes_way_for_a_service_that_grows_and_comes_back(session: ServiceSession) -> None:
    """One pool: replicas and training have whole nodes, so that one more replica is one training less."""
    count = len(session.cluster.nodes)
    session.serve("grown", "--replicas=1", "--exclusive")
    session.ready("grown", 1)
    training = Program(waits_for="never")
    jobs = [session.submit(training, "--nodes=1", "--exclusive", "--requeue") for _ in range(count - 1)]
    session.until(lambda: all(session.runs(job) == 1 for job in jobs), "the training, on all other nodes")
    session.scale("grown", 2)
    session.ready("grown", 2)
    waits = [job for job in jobs if session.run("squeue", "-h", "-j", job, "-o", "%T").stdout.strip() == "PENDING"]
    assert len(waits) == 1, "one training made way, and is in the queue again"
    session.scale("grown", 1)
    session.until(lambda: sum(map(session.runs, jobs)) == count, "its second run")
    assert session.runs(waits[0]) == 2
    session.ready("grown", 1)


# -- times -------------------------------------------------------------------------------------------------------------


@SERVICE_CHECKS.say()
def a_replica_whose_time_limit_nears_is_succeeded_before_it_ends(session: ServiceSession) -> None:
    session.serve("relay", "--replicas=1", "--time=1")
    (first,) = session.ready("relay", 1)
    session.asked_until("relay", lambda shown: first["number"] not in _numbers(shown), "its leaving")
    assert session.ended(str(first["job_id"]))[0] != "TIMEOUT"


@SERVICE_CHECKS.say()
def replicas_and_their_address_outlive_a_killed_daemon(session: ServiceSession) -> None:
    session.serve("lasting", "--replicas=2")
    before = session.ready("lasting", 2)
    url = session.shown("lasting")["url"]
    session.cluster.kill_daemon()
    with urlopen(url, timeout=_ANSWER_S) as answer:
        assert answer.status == 200, "the router goes on by what it knew"
    session.cluster.start_daemon()
    again = session.ready("lasting", 2)
    assert [each["job_id"] for each in again] == [each["job_id"] for each in before]


def _numbers(shown: dict[str, Any]) -> list[int]:
    return [each["number"] for each in shown["replicas"]]


def _is_whole(shown: dict[str, Any], count: int, revision: int) -> bool:
    return [(each["state"], each["revision"]) for each in shown["replicas"]] == [("ready", revision)] * count


def _sleeps(shown: dict[str, Any]) -> bool:
    """Without a replica, and with an address that can wake it."""
    return not shown["replicas"] and bool(shown["url"])
