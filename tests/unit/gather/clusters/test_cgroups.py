"""Whose a process is by its cgroup: what Slurm and kubelets make, and what users would like to have made."""

from __future__ import annotations

import pytest

from bireme.gather.clusters.cgroups import OfPod, OfSlurm, owner_in, owner_of_path
from bireme.gather.clusters.gres import gpu_files
from bireme.gather.clusters.listpids import Listed, read_listpids

UID = "0d1c6b0e-4c8b-4f0a-9d51-3f1f3e1a2b3c"
WITH_LOW_LINES = UID.replace("-", "_")
STATIC = "5f3a9c0d1e2b4a6f8c7d9e0b1a2c3d4e"
CONTAINER = "a" * 64


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        # v1, as Slurm 22.05 makes them (proctrack/cgroup, task/cgroup, jobacct_gather/cgroup)
        ("/slurm/uid_1000/job_42/step_0/task_1", OfSlurm(42, 0, 1)),
        ("/slurm/uid_1000/job_42/step_0", OfSlurm(42, 0, None)),
        ("/slurm/uid_1000/job_42/step_batch", OfSlurm(42, -5, None)),
        ("/slurm/uid_1000/job_42/step_extern", OfSlurm(42, -4, None)),
        ("/slurm/uid_1000/job_42/step_interactive/task_0", OfSlurm(42, -6, 0)),
        ("/slurm_n1/uid_0/job_1/step_batch", OfSlurm(1, -5, None, "n1")),
        ("/slurm_gpu-a.example/uid_0/job_1/step_3/task_12", OfSlurm(1, 3, 12, "gpu-a.example")),
        # v2, 22.05 and later
        ("/system.slice/slurmstepd.scope/job_42/step_batch/user/task_0", OfSlurm(42, -5, 0)),
        ("/system.slice/slurmstepd.scope/job_42/step_0/user/task_3", OfSlurm(42, 0, 3)),
        ("/system.slice/slurmstepd.scope/job_42/step_0/user", OfSlurm(42, 0, None)),
        ("/system.slice/slurmstepd.scope/job_42/step_extern/user/task_special", OfSlurm(42, -4, None)),
        ("/system.slice/n1_slurmstepd.scope/job_42/step_0/user/task_3", OfSlurm(42, 0, 3, "n1")),
        ("/slurmstepd.scope/job_42/step_0/user/task_3", OfSlurm(42, 0, 3)),
        # below a job's own cgroup: still that job's
        ("/system.slice/slurmstepd.scope/job_42/step_0/user/task_3/job_7/step_0/user/task_0", OfSlurm(42, 0, 3)),
        ("/slurm/uid_1000/job_42/step_0/task_1/slurm/uid_0/job_7/step_0", OfSlurm(42, 0, 1)),
        # a component of a heterogeneous step
        ("/slurm/uid_1000/job_42/step_0+1/task_0", OfSlurm(42, 0, 0)),
        # read in a container, or on a node that is one
        ("/../../slurm/uid_1000/job_42/step_0", OfSlurm(42, 0, None)),
        ("/../system.slice/slurmstepd.scope/job_42/step_0/user/task_3", OfSlurm(42, 0, 3)),
        (f"/docker/{CONTAINER}/slurm/uid_1000/job_42/step_0", OfSlurm(42, 0, None)),
    ],
)
def test_a_process_of_a_step(path: str, owner: OfSlurm) -> None:
    assert owner_of_path(path) == owner


@pytest.mark.parametrize(
    "path",
    [
        f"/kubepods/burstable/pod{UID}/{CONTAINER}",
        f"/kubepods/besteffort/pod{UID}/{CONTAINER}",
        f"/kubepods/pod{UID}/{CONTAINER}",
        f"/kubepods/pod{UID}",
        f"/kubelet/kubepods/pod{UID}/{CONTAINER}",
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{WITH_LOW_LINES}.slice/cri-containerd-{CONTAINER}.scope",
        f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{WITH_LOW_LINES}.slice/crio-{CONTAINER}.scope",
        f"/kubepods.slice/kubepods-pod{WITH_LOW_LINES}.slice/docker-{CONTAINER}.scope",
        f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{WITH_LOW_LINES}.slice/cri-containerd-{CONTAINER}.scope",
        f"/../../burstable/pod{UID}/{CONTAINER}",
        f"/../../pod{UID}/{CONTAINER}",
        f"/../../../kubepods-burstable.slice/kubepods-burstable-pod{WITH_LOW_LINES}.slice/cri-containerd-{CONTAINER}.scope",
        f"/docker/{CONTAINER}/kubepods/burstable/pod{UID}/{CONTAINER}",
        f"/kubepods/burstable/pod{UID}/{CONTAINER}/pod{UID.replace('0d1c', 'ffff')}",
    ],
)
def test_a_process_of_a_pod(path: str) -> None:
    assert owner_of_path(path) == OfPod(UID)


def test_a_container_is_known_by_its_own_id_where_pods_have_no_cgroups() -> None:
    assert owner_of_path(f"/k8s.io/{CONTAINER}") == OfPod(CONTAINER)
    assert owner_of_path(f"/k8s.io/{CONTAINER}/k8s.io/{'b' * 64}") == OfPod(CONTAINER)
    assert owner_of_path(f"/../{CONTAINER}") == OfPod(CONTAINER), "as the container beside it sees it"
    assert owner_of_path(f"/../{CONTAINER}/{'b' * 64}") == OfPod(CONTAINER)
    assert owner_of_path(f"/../user.slice/{CONTAINER}") is None
    assert owner_of_path(f"/{CONTAINER}") is None
    assert owner_of_path(f"/user.slice/k8s.io/{CONTAINER}") is None
    assert owner_of_path(f"/k8s.io/{CONTAINER[1:]}") is None


def test_a_static_pods_uid_has_no_dashes() -> None:
    assert owner_of_path(f"/kubepods/burstable/pod{STATIC}/{CONTAINER}") == OfPod(STATIC)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "/init.scope",
        "/system.slice/slurmd.service",
        "/slurm",
        "/slurm/uid_1000/job_42",  # slurmstepd itself
        "/system.slice/slurmstepd.scope/system",
        "/system.slice/slurmstepd.scope/job_42",
        "/system.slice/slurmstepd.scope/job_42/step_0/slurm",  # slurmstepd itself
        "/slurm/uid_1000/job_42/step_nothing",
        "/slurm/uid_1000/job_42/step_0x",
        "/slurm/uid_1000/job_99999999999/step_0",
        # what a user's session can make
        "/user.slice/user-1000.slice/user@1000.service/slurm/uid_0/job_42/step_0",
        "/user.slice/user-1000.slice/user@1000.service/system.slice/slurmstepd.scope/job_42/step_0/user/task_0",
        f"/user.slice/user-1000.slice/user@1000.service/kubepods/pod{UID}/{CONTAINER}",
        f"/a/kubepods/pod{UID}/{CONTAINER}",
        f"/kubepods/burstable/pod{UID[:-1]}/{CONTAINER}",
        f"/kubepods/burstable/podx{UID}/{CONTAINER}",
        "/kubepods/burstable",
    ],
)
def test_nobodys_process(path: str) -> None:
    assert owner_of_path(path) is None


def test_of_several_hierarchies_the_one_counts_that_says_the_most() -> None:
    lines = [
        "9:name=systemd:/",
        "6:freezer:/slurm_n1/uid_0/job_1/step_0",
        "4:memory:/slurm_n1/uid_0/job_1/step_0/task_2",
        "3:cpuset:/slurm_n1/uid_0/job_1/step_0",
        "0::/",
    ]
    assert owner_in("\n".join(lines)) == OfSlurm(1, 0, 2, "n1")
    assert owner_in("\n".join(lines[:2])) == OfSlurm(1, 0, None, "n1")
    assert owner_in("9:name=systemd:/\n0::/\n") is None
    assert owner_in(f"0::/kubepods/burstable/pod{UID}/{CONTAINER}\n") == OfPod(UID)
    assert owner_in("damaged") is None


def test_what_scontrol_lists() -> None:
    said = (
        "PID      JOBID    STEPID   LOCALID GLOBALID\n"
        "16087    1        0        0       0       \n"
        "16088    1        0        1       3       \n"
        "16090    1        0        -       -       \n"
        "16059    1        batch    0       0       \n"
        "16060    1        batch    -       -       \n"
        "16088    2        batch    -       -       \n"
        "17000    9        dreams   -       -       \n"
        "There are no steps for job 0 on node n1.\n"
    )
    assert read_listpids(said) == [
        Listed(16087, 1, 0, 0),
        Listed(16088, 1, 0, 1),
        Listed(16090, 1, 0, None),
        Listed(16059, 1, -5, 0),
        Listed(16060, 1, -5, None),
    ]


GRES = "slurmd: Gres Name=gpu Type={type} Count={count} Index=0 ID=7696487 File={file} (null)"


@pytest.mark.parametrize(
    ("lines", "files"),
    [
        ([GRES.format(type="a100", count=2, file="/dev/nvidia[0-1]")], ["/dev/nvidia0", "/dev/nvidia1"]),
        (
            [
                GRES.format(type="a100", count=1, file="/dev/nvidia0"),
                "slurmd: Gres Name=shard Count=8",
                GRES.format(type="h100", count=2, file="/dev/nvidia[4,6]"),
            ],
            ["/dev/nvidia0", "/dev/nvidia4", "/dev/nvidia6"],
        ),
        (
            [
                GRES.format(type="h100", count=1, file="/dev/nvidia4"),
                GRES.format(type="a100", count=1, file="/dev/nvidia0"),
            ],
            [],
        ),
        ([GRES.format(type="a100", count=3, file="/dev/nvidia[0-1]")], []),
        (["slurmd: Gres Name=gpu Type=a100 Count=2 ID=7696487 (null)"], []),
        (["slurmd: Gres Name=gpu Count=1 File=/dev/nvidia0,/dev/nvidia-caps MultipleFiles"], []),
        (["slurmd: fatal: no such file"], []),
        ([GRES.format(type="a100", count=1, file="/dev/nvidia[0-")], []),
    ],
)
def test_which_file_each_of_slurms_gpus_is(lines: list[str], files: list[str]) -> None:
    assert gpu_files("\n".join(lines)) == files
