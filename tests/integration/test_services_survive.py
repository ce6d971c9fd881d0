"""Services on a real cluster under a steady load, while replicas, nodes, the daemon and the router are killed."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Cluster, virtual_nodes
from tests.support.ports import free_port
from tests.support.serving import SERVER, listening_router, ready, router, serve, shown, steady_load


def made_cluster() -> Cluster:
    """Three nodes with room for two replicas each, and a router at a port of its own that stays the same."""
    made = Cluster(virtual_nodes(3, 0, cpus=2, settings="SlurmdTimeout=5"))
    made.variables |= {
        "BIREME_ROUTER_ADDRESS": f"127.0.0.1:{free_port()}",
        "BIREME_ROUTER_WORKERS": "1",
    }
    return made


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    with made_cluster().running() as running:
        yield running


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    """The one of all tests here, without any service before and after."""
    yield shared
    shared.bireme("service", "stop", "chat")
    shared.until(lambda: not json.loads(shared.bireme("services", "--json").stdout), 60.0)


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    with made_cluster().running() as running:
        yield running


def numbers(replicas: list[dict[str, Any]]) -> list[int]:
    return [each["number"] for each in replicas]


def pid_of(cluster: Cluster, replica: int) -> int:
    """Of its server."""
    (pid,) = cluster.pids_with(f"BIREME_REPLICA={replica}")
    return pid


def test_a_killed_replica_is_replaced_and_no_request_fails(cluster: Cluster) -> None:
    serve(cluster, "--replicas=3")
    before = numbers(ready(cluster, 3))
    with steady_load(shown(cluster)["url"]) as load:
        os.kill(pid_of(cluster, before[1]), signal.SIGKILL)
        cluster.until(lambda: before[1] not in numbers(shown(cluster)["replicas"]))
        after = numbers(ready(cluster, 3))
        load.more()
    assert {int(answer.split()[0]) for answer in load.answers} == {*before, *after}


def test_a_lost_node_is_replaced_and_no_request_fails(cluster: Cluster) -> None:
    serve(cluster, "--replicas=3", "--spread-job")
    replicas = ready(cluster, 3)
    with steady_load(shown(cluster)["url"]):
        cluster.kill_agent(replicas[0]["node"])
        gone = [each["number"] for each in replicas if each["node"] == replicas[0]["node"]]
        cluster.until(lambda: not set(gone) & set(numbers(shown(cluster)["replicas"])))
        ready(cluster, 3)


def test_an_update_is_rolled_out_and_no_request_fails(cluster: Cluster) -> None:
    serve(cluster, "--replicas=3")
    ready(cluster, 3)
    with steady_load(shown(cluster)["url"]) as load:
        serve(cluster, "--replicas=3", mark="second")
        ready(cluster, 3, revision=2)
        load.more()
    assert load.answers[-1].endswith(b"second")


def test_the_router_goes_on_while_the_daemon_is_dead_and_is_found_again(cluster: Cluster) -> None:
    serve(cluster, "--replicas=3")
    ready(cluster, 3)
    before = listening_router(cluster)
    with steady_load(before["url"] + "/chat/") as load:
        cluster.kill_daemon()
        load.more(200)
        cluster.up_again()
        cluster.until(lambda: router(cluster) == before)
        ready(cluster, 3)
        first = numbers(ready(cluster, 3))[0]
        os.kill(pid_of(cluster, first), signal.SIGKILL)
        cluster.until(lambda: first not in numbers(shown(cluster)["replicas"]))
        ready(cluster, 3)


def test_a_daemon_that_dies_in_the_middle_of_an_update_finishes_it_when_it_is_back(cluster: Cluster) -> None:
    serve(cluster, "--replicas=3")
    ready(cluster, 3)
    with steady_load(shown(cluster)["url"]):
        serve(cluster, "--replicas=3", mark="second")
        cluster.until(lambda: any(each["revision"] == 2 for each in shown(cluster)["replicas"]))
        cluster.kill_daemon()
        cluster.up_again()
        ready(cluster, 3, revision=2)


def test_a_killed_router_comes_back_at_its_place_and_no_request_fails(cluster: Cluster) -> None:
    serve(cluster, "--replicas=1")
    ready(cluster, 1)
    before = listening_router(cluster)
    with steady_load(before["url"] + "/chat/"):
        os.kill(before["pid"], signal.SIGKILL)
        cluster.until(lambda: router(cluster).get("pid") not in (None, before["pid"]))
        assert router(cluster)["url"] == before["url"]
    processes = [words for _, words in cluster.processes() if "bireme.router" in words]
    assert len(processes) == 2, processes


def test_a_router_that_does_not_answer_in_an_update_is_replaced_and_no_request_fails(cluster: Cluster) -> None:
    """Its supervisor is stopped before the update: no worker can be told of the new replicas."""
    serve(cluster, "--replicas=3", "--drain=1s")
    old = numbers(ready(cluster, 3))
    about = listening_router(cluster)
    with steady_load(about["url"] + "/chat/") as load:
        os.kill(about["pid"], signal.SIGSTOP)
        serve(cluster, "--replicas=3", "--drain=1s", mark="second")
        cluster.until(lambda: "does not answer" in router(cluster).get("warning", ""))
        assert set(old) <= set(numbers(shown(cluster)["replicas"])), "who serves is not ended"
        assert re.search("the router (does not answer|is being started)", cluster.bireme("services").stdout)
        ready(cluster, 3, revision=2)
        load.more()
    assert load.answers[-1].endswith(b"second")
    assert router(cluster)["pid"] != about["pid"]


def test_a_full_disk_stops_no_routing_and_is_told_where_people_look(cluster: Cluster) -> None:
    serve(cluster, "--replicas=2")
    before = ready(cluster, 2)
    about = listening_router(cluster)
    full = Path(cluster.home) / "router" / "table.new"
    full.symlink_to("/dev/full")
    try:
        with steady_load(about["url"] + "/chat/"):
            os.kill(pid_of(cluster, before[0]["number"]), signal.SIGKILL)
            cluster.until(lambda: before[0]["number"] not in numbers(shown(cluster)["replicas"]))
            after = ready(cluster, 2)
            cluster.until(lambda: router(cluster).get("warning"))
        assert numbers(after) != numbers(before)
        why = "the router answers, but its table cannot be written"
        said = [("services",), ("status",), ("service", "show", "chat"), ("why", "chat"), ("doctor",)]
        assert all(why in cluster.bireme(*words, check=False).stdout for words in said)
    finally:
        full.unlink()
    cluster.until(lambda: router(cluster) == about)
    assert why not in cluster.bireme("services").stdout


def test_down_leaves_services_running_and_says_so_and_end_jobs_ends_them(own_cluster: Cluster) -> None:
    cluster = own_cluster
    serve(cluster, "--replicas=1")
    ready(cluster, 1)
    about = listening_router(cluster)
    assert f"Router    {about['url']}, pid {about['pid']}" in cluster.bireme("status").stdout
    assert f"services are reached at {about['url']}" in cluster.bireme("doctor", check=False).stdout
    said = cluster.bireme("down").stdout
    assert f"Services go on, and their router (pid {about['pid']})" in said
    with steady_load(about["url"] + "/chat/"):
        assert f"pid {about['pid']}" in cluster.bireme("status", check=False).stdout
    back = "back with the next `bireme up`; then `bireme service stop NAME` ends one."
    assert f"Its services come {back}" in cluster.bireme("down", "--end-jobs").stdout, "no daemon can name them"
    assert not cluster.processes()
    said = cluster.bireme("up").stdout
    assert "It keeps up 1 service (chat); `bireme service stop NAME` ends one." in said
    ready(cluster, 1)
    assert f"1 service (chat) comes {back}" in cluster.bireme("down", "--end-jobs").stdout
    cluster.up_again()
    ready(cluster, 1)
    assert shown(cluster)["crashes"] == [], "nobody crashed: they were ended"


GANG = """#!/bin/bash
srun --ntasks=2 bash -c 'echo $SLURMD_NODENAME > part.$BIREME_REPLICA.$SLURM_PROCID; exec sleep 3600' &
until [ -s part.$BIREME_REPLICA.0 ] && [ -s part.$BIREME_REPLICA.1 ]; do sleep 0.05; done
exec {python} -IS {server}
"""
"""A worker on each of two nodes; the first node listens when both are there."""


def test_a_gang_over_two_nodes_serves_and_is_replaced_whole_when_it_loses_one(cluster: Cluster) -> None:
    server = cluster.script(SERVER.format(python=cluster.python, mark="gang"), "server.py")
    script = cluster.script(GANG.format(python=cluster.python, server=server), "gang.sh")
    shape = ("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", "--mem=100M")
    cluster.bireme("serve", str(script), "--name", "chat", *shape, "--replicas=1")
    (first,) = ready(cluster, 1)
    parts = [(cluster.work / f"part.{first['number']}.{rank}").read_text().strip() for rank in (0, 1)]
    assert parts[0] == first["node"] != parts[1]
    with steady_load(shown(cluster)["url"]) as load:
        load.more()
    assert set(load.answers) == {f"{first['number']} 1 gang".encode()}

    cluster.kill_agent(parts[1])
    cluster.until(lambda: first["number"] not in numbers(shown(cluster)["replicas"]), 120.0)
    (second,) = ready(cluster, 1)
    with steady_load(shown(cluster)["url"]) as load:
        load.more()
    assert set(load.answers) == {f"{second['number']} 1 gang".encode()}
    cluster.until(lambda: not cluster.pids_with(f"BIREME_REPLICA={first['number']}"), 120.0)


def test_a_taken_port_of_the_router_is_told_and_one_of_a_replica_is_another_replicas(own_cluster: Cluster) -> None:
    cluster = own_cluster
    first_port = cluster.service_ports[0]
    port = int(cluster.variables["BIREME_ROUTER_ADDRESS"].rpartition(":")[2])
    with (
        closing(socket.create_server(("127.0.0.1", port))),
        closing(socket.create_server(("127.0.0.1", first_port))),
    ):
        serve(cluster, "--replicas=1")
        (replica,) = ready(cluster, 1)
        assert replica["port"] != first_port
        assert replica["number"] > 1
        cluster.until(lambda: router(cluster).get("problem"))
        assert f"127.0.0.1:{port} is taken by another program" in cluster.bireme("status").stdout
        assert f"None of them can be reached: 127.0.0.1:{port} is taken" in cluster.bireme("services").stdout
        assert f"which cannot be reached: 127.0.0.1:{port}" in cluster.bireme("service", "show", "chat").stdout
        doctor = cluster.bireme("doctor", check=False).stdout
        assert "to have it listen elsewhere: router.address in" in doctor
    listening_router(cluster)
    with steady_load(shown(cluster)["url"]):
        pass
