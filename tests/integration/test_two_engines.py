"""This machine and a real Slurm in one daemon: the partition says which of them runs a job."""

from __future__ import annotations

import pytest
from tests.slurm_cluster import Layout, SlurmCluster, running
from tests.support.cluster import Cluster, virtual_nodes
from tests.support.slurm_attached import skip_without_slurm, wrappers

from bireme.core.model.cluster import ClusterConfig, NodeConfig, PartitionConfig
from bireme.engines.routing import together

OWN = (
    virtual_nodes(2, 2, cpus=8)
    .replace("NodeName=n[1-2]", "NodeName=v[1-2]")
    .replace("ClusterName=rehearsal", "ClusterName=own")
)


def states(cluster: Cluster, *jobs: str) -> list[str]:
    said = cluster.run("sacct", "-nXP", "-j", ",".join(jobs), "-o", "JobID,State,ExitCode,NodeList").stdout
    return sorted(said.split())


def test_a_partition_chooses_the_engine() -> None:
    skip_without_slurm()
    with running(Layout()) as slurm:
        both = Cluster(OWN)
        both.home.mkdir()
        settings = f'[cluster]\nengine = "embedded+slurm"\n[slurm]\nconf = "{slurm.folder}/slurm.conf"\npoll_s = 1\n'
        if slurm.slurm.chroot:
            settings += f'commands = "{wrappers(both.folder / "commands", slurm)}"\n'
            both.work = slurm.work
        (both.home / "bireme.toml").write_text(settings)
        with both.running():
            _check(both, slurm)


def _check(both: Cluster, slurm: SlurmCluster) -> None:
    nodes = both.run("sinfo", "-h", "-o", "%P %N").stdout.split("\n")
    assert "main* v[1-2]" in nodes
    assert "cpu c[1-2]" in nodes
    ours = both.sbatch("--wrap", "exit 3")
    theirs = both.sbatch("-p", "cpu", "--wrap", "exit 4")
    assert int(ours) >= 60_000_000 > int(theirs)
    slurm.until(lambda: len([line for line in states(both, ours, theirs) if "FAILED" in line]) == 2, "both end")
    assert [line.split("|")[2] for line in states(both, ours, theirs)] == ["4:0", "3:0"]
    assert slurm.call("squeue", "-h", "-t", "all", "-j", theirs, "-o", "%T") == "FAILED"

    held = [both.sbatch("-H", "--wrap", "true"), both.sbatch("-H", "-p", "cpu", "--wrap", "true")]
    both.kill_daemon()
    both.up_again()
    assert both.run("squeue", "-h", "-o", "%r").stdout.split() == ["JobHeldUser", "JobHeldUser"]
    for job in held:
        both.run("scontrol", "release", job)
    slurm.until(lambda: len([line for line in states(both, *held) if "COMPLETED" in line]) == 2, "both run")

    _check_clusters(both)
    _check_changes(both, slurm)
    mixed = both.run("sbatch", "-p", "main,cpu", "--wrap", "true", check=False)
    assert "Invalid partition name specified" in mixed.stderr
    both.run("scontrol", "update", "NodeName=c1", "State=DRAIN", "Reason=x")
    assert slurm.call("sinfo", "-h", "-n", "c1", "-o", "%t") == "drain"
    both.run("scontrol", "update", "NodeName=v1", "State=DRAIN", "Reason=y")
    assert {"c1 drain", "v1 drain"} <= set(both.run("sinfo", "-h", "-N", "-o", "%N %t").stdout.split("\n"))


def _check_clusters(both: Cluster) -> None:
    """-M names the cluster: of a submission without a partition, and of everything that lists."""
    ours, theirs = (both.run("sbatch", "-M", name, "-H", "--wrap", "true").stdout for name in ("own", "rehearsal"))
    assert ours.endswith(" on cluster own\n")
    assert theirs.endswith(" on cluster rehearsal\n")
    own, other = ours.split()[3], theirs.split()[3]
    assert int(own) >= 60_000_000 > int(other)
    assert both.run("squeue", "-M", "rehearsal,own", "-o", "%i").stdout == (
        f"CLUSTER: rehearsal\nJOBID\n{other}\n\nCLUSTER: own\nJOBID\n{own}\n"
    )
    assert both.run("sinfo", "-h", "-M", "rehearsal", "-o", "%R").stdout.split() == ["gpu", "cpu", "all"]
    assert "cpu" not in both.run("sinfo", "-h", "-M", "own", "-o", "%R").stdout.split()
    assert both.run("sacct", "-nXP", "-M", "rehearsal", "-j", f"{own},{other}", "-o", "JobID").stdout.split() == [other]
    assert f"JobId={other} " in both.run("scontrol", "-M", "rehearsal", "-o", "show", "job", other).stdout
    assert "NodeName=v1 " not in both.run("scontrol", "-M", "rehearsal", "-o", "show", "node").stdout
    elsewhere = both.run("scontrol", "-M", "own", "update", f"JobId={other}", "Comment=x", check=False)
    assert (elsewhere.returncode, "Invalid job id specified" in elsewhere.stderr) == (1, True)
    both.run("scancel", "-M", "own", "-u", "root")
    assert both.run("squeue", "-h", "-o", "%i").stdout.split() == [other]
    both.run("scancel", "-M", "rehearsal", other)
    for command in (["sbatch", "--wrap", "true"], ["squeue"], ["sinfo"], ["scancel", other], ["srun", "true"],
                    ["scontrol", "ping"]):  # fmt: skip
        refused = both.run(command[0], "-M", "nowhere", *command[1:], check=False)
        assert refused.returncode == 1
        assert f"{command[0]}: error: No cluster 'nowhere' known by database.\n" in refused.stderr
    wrong = both.run("sbatch", "-M", "own", "-p", "cpu", "--wrap", "true", check=False)
    assert "cpu is not of cluster own" in wrong.stderr


def _check_changes(both: Cluster, slurm: SlurmCluster) -> None:
    """What `scontrol update` changes of a job, also where one key sets several fields, reaches Slurm and comes back."""
    job = both.sbatch("-H", "-p", "cpu", "--comment=first", "--nice=3", "--wrap", "true")
    assert "Comment=first" in both.run("scontrol", "-o", "show", "job", job).stdout
    for pair, shown in (
        ("NumNodes=1-2", "NumNodes=1-2"),
        ("MinMemoryNode=100", "MinMemoryNode=100M"),
        ("MinMemoryCPU=50", "MinMemoryCPU=50M"),
        ("Switches=1@5", "Switches=1@00:05:00"),
        ("MinTmpDiskNode=7", "MinTmpDiskNode=7M"),
        ("Comment=second", "Comment=second"),
        ("Requeue=0", "Requeue=0"),
        ("Deadline=2040-01-01T00:00:00", "Deadline=2040-01-01T00:00:00"),
        ("TimeLimit=10", "TimeLimit=00:10:00"),
    ):
        both.run("scontrol", "update", f"JobId={job}", pair)
        assert shown in slurm.call("scontrol", "-o", "show", "job", job), pair
        if not pair.startswith("Switches"):  # 22.05 does not say it in its JSON
            assert shown in both.run("scontrol", "-o", "show", "job", job).stdout, pair
    both.run("scancel", job)


@pytest.mark.parametrize("clash", ["node", "partition"])
def test_names_of_both_are_told(clash: str) -> None:
    host = ClusterConfig(nodes=(NodeConfig(name="a", cpus=1),), partitions=(PartitionConfig(name="p", nodes=("a",)),))
    node, partition = ("a", "q") if clash == "node" else ("b", "p")
    guest = ClusterConfig(
        name="theirs",
        nodes=(NodeConfig(name=node, cpus=9),),
        partitions=(PartitionConfig(name=partition, nodes=(node,), default=True),),
    )
    merged, hidden = together(host, guest)
    assert merged.nodes[0].cpus == 1
    assert merged.partitions[0].nodes == ("a",)
    assert not any(each.default for each in merged.partitions)
    assert "those of theirs are not shown" in hidden
