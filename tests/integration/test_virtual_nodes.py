"""Virtual nodes look like nodes: their names, their addresses, their GPUs; as root and as an ordinary user."""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
from collections.abc import Iterator

import pytest
from tests.support.cluster import Cluster, virtual_nodes

NODES = [f"n{number}" for number in range(1, 9)]
CONF = virtual_nodes(8, 8, cpus=32)


def user_namespaces_work() -> bool:
    identity = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    probe = subprocess.run(["unshare", "--user", "--map-root-user", "true"], capture_output=True, **identity)
    return probe.returncode == 0


@pytest.fixture(scope="module", params=["root", "nobody"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if os.geteuid() != 0 and request.param == "root":
        pytest.skip("needs root")
    if request.param != "root" and not user_namespaces_work():
        pytest.skip("this kernel gives ordinary users no user namespaces: nodes cannot have names of their own")
    owner = "nobody" if request.param == "nobody" and os.geteuid() == 0 else None
    with Cluster(CONF, owner=owner).running() as made:
        yield made


def test_every_task_sees_its_node(cluster: Cluster) -> None:
    program = 'echo "$(hostname) $(uname -n) $SLURMD_NODENAME $(cat /proc/sys/kernel/hostname) $(id -u)"'
    done = cluster.run("srun", "-N8", "-n8", "bash", "-c", program)
    uid = "65534" if cluster.owner else str(os.getuid())
    assert sorted(done.stdout.splitlines()) == [f"{n} {n} {n} {n} {uid}" for n in NODES]


def test_every_node_resolves_to_its_own_address_everywhere(cluster: Cluster) -> None:
    program = f"for n in {' '.join(NODES)}; do getent ahostsv4 $n | head -1 | cut -d' ' -f1; done | tr '\\n' ' '; echo"
    done = cluster.run("srun", "-N8", "-n8", "bash", "-c", program)
    lines = set(done.stdout.splitlines())
    assert len(lines) == 1, "all nodes agree"
    addresses = lines.pop().split()
    assert len(set(addresses)) == 8
    assert all(address.startswith("127.") for address in addresses)


def test_master_addr_just_works(cluster: Cluster) -> None:
    """Rank 0 listens on the first node's name; every other node reaches it there and nowhere else."""
    server = "import socket; s=socket.create_server((socket.gethostname(),29517)); open('up','w');" + (
        "[s.accept()[0].sendall(b'hi') for _ in range(3)]"
    )
    client = "import os,socket; print(socket.create_connection((os.environ['MASTER_ADDR'],29517)).recv(2).decode())"
    cluster.script(
        "export MASTER_ADDR=$(scontrol show hostnames | head -1)\n"
        f'srun --exact -N1 -n1 -c1 -w $MASTER_ADDR python3 -c "{server}" &\n'
        "while [ ! -e up ]; do sleep 0.02; done\n"
        f'srun --exact -n3 -N3 -c1 -x $MASTER_ADDR python3 -c "{client}"; wait',
        "meet.sh",
    )
    job = cluster.sbatch("-N4", "-n4", "-c2", "-o", "meet.out", "meet.sh")
    record = cluster.wait(job, 60)
    assert (cluster.work / "meet.out").read_text().split() == ["hi"] * 3
    assert record["state"] == "COMPLETED"


def test_gpu_variables(cluster: Cluster) -> None:
    names = "CUDA_VISIBLE_DEVICES GPU_DEVICE_ORDINAL SLURM_JOB_GPUS SLURM_GPUS_ON_NODE SLURM_JOB_NUM_NODES".split()  # noqa: SIM905
    body = "".join(f"echo {name}=${name}\n" for name in names) + "srun -n1 bash -c 'echo STEP=$SLURM_STEP_GPUS'\n"
    job = cluster.sbatch("--gres=gpu:h100:3", "-o", "gpu.out", "--wrap", body)
    assert cluster.wait(job, 30)["state"] == "COMPLETED"
    seen = dict(line.split("=", 1) for line in (cluster.work / "gpu.out").read_text().splitlines())
    assert seen["CUDA_VISIBLE_DEVICES"] == seen["SLURM_JOB_GPUS"] == seen["STEP"] == "0,1,2"
    assert seen["SLURM_GPUS_ON_NODE"] == "3"


def test_two_jobs_never_share_a_gpu(cluster: Cluster) -> None:
    """Ninety-six one-GPU jobs on sixty-four GPUs: at no time has a GPU two owners, and all are used."""
    cluster.script(
        'me="$SLURMD_NODENAME $SLURM_JOB_GPUS"; echo "+ $me" >> gpus.log; sleep 0.2; echo "- $me" >> gpus.log', "one.sh"
    )
    job = cluster.sbatch("--array=0-95", "--gpus=1", "-c1", "-o", "/dev/null", "one.sh")
    assert cluster.wait(job, 120)["state"] == "COMPLETED"
    owned: set[str] = set()
    used: set[str] = set()
    for line in (cluster.work / "gpus.log").read_text().splitlines():
        sign, _, gpu = line.partition(" ")
        if sign == "+":
            assert gpu not in owned, f"{gpu} has two owners"
            owned.add(gpu)
            used.add(gpu)
        else:
            owned.remove(gpu)
    assert not owned
    assert len(used) == 64


def test_the_host_itself_is_left_as_it_was(cluster: Cluster) -> None:
    before = os.uname().nodename
    cluster.run("srun", "-N2", "-n2", "hostname")
    assert os.uname().nodename == before
    with open("/etc/hosts") as file:
        assert "n8" not in file.read().split()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take on a group, as `sg` and `newgrp` do")
def test_a_job_submitted_under_another_group_runs_and_says_when_it_does_not_run_under_it(cluster: Cluster) -> None:
    """Root's cluster runs it under that group; a user's own cluster cannot, and the user reads so."""
    games = grp.getgrnam("games").gr_gid
    user = cluster.owner or "root"
    job = cluster.sbatch("-o", "sg.out", "--wrap", "id -g; srun true", user=user, gid=games)
    assert cluster.wait(job, 30)["state"] == "COMPLETED"
    said = (cluster.work / "sg.out").read_text().splitlines()
    if cluster.owner is None:
        assert said == [str(games)]
        return
    own = pwd.getpwnam(cluster.owner).pw_gid
    group = grp.getgrgid(own).gr_name
    notice = f"group games is not applied: without root jobs run under the group that the cluster has, {group}"
    assert said == [f"slurmstepd: {notice}", str(own), f"slurmstepd: {notice}"]
