"""Fences on a real cluster: no job gets a GPU that is out of service, whatever dies; and the hook hears of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cluster import Cluster

from bireme.client.sdk import Client

CONF = """
ClusterName=fenced
SlurmctldHost=localhost
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
KillWait=2
NodeName=n[1-2] NodeHostname=localhost CPUs=4 Gres=gpu:h100:2
PartitionName=main Nodes=ALL Default=YES
"""
HOOK = """#!/bin/sh
cat > "{folder}/$$.new"
mv "{folder}/$$.new" "{folder}/$$.json"
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(CONF)
    made.conf(CONF, gres="NodeName=n[1-2] Name=gpu Type=h100 File=/dev/nvidia[0-1]\n")
    hook = made.folder / "hook"
    (made.folder / "told").mkdir()
    hook.write_text(HOOK.format(folder=made.folder / "told"))
    hook.chmod(0o755)
    made.variables["BIREME_HEALING_HOOK"] = str(hook)
    with made.running():
        yield made


def gpus_on(cluster: Cluster, node: str) -> str:
    return cluster.run("srun", "-w", node, "--gres=gpu:1", "sh", "-c", "echo $SLURM_STEP_GPUS").stdout.strip()


def test_a_fenced_gpu_is_given_to_nobody_also_after_the_daemon_was_killed(cluster: Cluster) -> None:
    said = cluster.bireme("healings", "fence", "n1:gpu0", "--reason", "fan 3 rattles").stdout
    assert said == "Healing 1 (take GPU 0 of n1 out of service, 1 stays) is done.\n"
    assert gpus_on(cluster, "n1") == "1"
    shown = cluster.run("scontrol", "show", "node", "n1", "-d").stdout
    assert "GresDrain=gpu:h100:1(IDX:0)" in shown
    assert "Reason=GPU 0 fenced: fan 3 rattles [" in shown
    cluster.kill_daemon()
    cluster.up_again()
    assert gpus_on(cluster, "n1") == "1"
    wants_all = cluster.run("sbatch", "--parsable", "-w", "n1", "--gres=gpu:2", "--wrap", "true").stdout.strip()
    why = cluster.bireme("why", wants_all).stdout
    assert "GPU 0 of n1 is fenced: fan 3 rattles" in " ".join(why.split())
    refused = cluster.bireme("healings", "fence", "n1:0", "--reason", "again", check=False)
    assert refused.returncode != 0
    assert "n1:gpu0 is fenced already: fan 3 rattles; `bireme healings undo 1` lifts that" in refused.stderr
    assert "Healing 1 (" in cluster.bireme("healings", "undo", "1", "--why", "new fan").stdout
    assert cluster.wait(wants_all)["state"] == "COMPLETED"


def test_a_node_is_drained_in_slurms_words_and_resuming_it_lifts_the_fence(cluster: Cluster) -> None:
    cluster.bireme("healings", "fence", "n2", "--reason", "its link flaps")
    assert "its link flaps" in cluster.run("sinfo", "-R", "-h", "-o", "%E %N").stdout
    cluster.run("scontrol", "update", "nodename=n2", "state=resume")
    shown = json.loads(cluster.bireme("healings", "--all", "--json").stdout)
    newest = shown["healings"][0]
    assert (newest["state"], newest["said"]) == ("undone", "the node was resumed")
    cluster.bireme("healings", "fence", "n2:gpu1", "--reason", "it is hot")
    resumed = cluster.run("scontrol", "update", "nodename=n2", "state=resume")
    assert "n2:gpu1 stays fenced: bireme healings undo" in resumed.stderr
    cluster.bireme("healings", "undo", str(newest["id"] + 1))
    shown = json.loads(cluster.bireme("healings", "--json").stdout)
    assert shown["fences"] == []


def told(cluster: Cluster, what: str, why: str) -> list[dict[str, Any]]:
    facts = [json.loads(file.read_text()) for file in (cluster.folder / "told").glob("*.json")]
    return [each for each in facts if each["what"] == what and each["why"] == why]


def test_the_hook_hears_of_all_of_it(cluster: Cluster) -> None:
    with Client(str(cluster.home)) as client:
        client.fence("n2", "for the hook")
        cluster.until(lambda: told(cluster, "fence raised", "for the hook"))
        client.undo_healing(client.healings()[0]["id"], "heard")
    cluster.until(lambda: told(cluster, "fence lifted", "heard"))
    (raised,) = told(cluster, "fence raised", "for the hook")
    assert (raised["place"], raised["by"]) == ("n2", "root")


def test_a_repair_that_ends_well_and_a_check_that_passes_lift_the_fence(cluster: Cluster) -> None:
    repairing, asked = cluster.folder / "repair", cluster.folder / "asked"
    repairing.write_text(f'#!/bin/sh\necho "$BIREME_REPAIR_PLACE $#" >> {asked}\ntest -e {cluster.folder}/good\n')
    repairing.chmod(0o755)
    cluster.variables |= {"BIREME_HEALING_REPAIR": str(repairing), "SLURMD_NODENAME": "n1"}
    with Client(str(cluster.home)) as client:
        client.fence("n1:gpu1", "it has to be reset")
        done = cluster.bireme("health", "--repair", check=False)
        assert done.returncode == 1
        assert "n1:gpu1 stays fenced" in done.stdout
        assert "ended with exit code 1" in done.stdout
        (cluster.folder / "good").touch()
        done = cluster.bireme("health", "--repair", check=False)
        passed = done.returncode == 0  # what else is wrong with this machine is not the test's
        assert ("n1:gpu1 is in service again" in done.stdout) is passed
        fenced = [each["place"] for each in client.transport.get("/v1/healings")["fences"]]
        assert fenced == ([] if passed else ["n1:gpu1"])
    assert set(asked.read_text().splitlines()) == {"n1:gpu1 0"}
