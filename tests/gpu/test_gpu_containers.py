"""A CUDA program in an image that has nothing of NVIDIA's: the machine's driver is put beside it, and only its GPUs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.gpu.asking import Report
from tests.support.cluster import Cluster
from tests.support.rootfs import glibc_root, python_mounts

from bireme.agent.devices.gpus import GpuInfo

pytestmark = pytest.mark.gpu

PROGRAM = Path(__file__).parent / "cuda_driver.py"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    smi = shutil.which("nvidia-smi")
    root = glibc_root(tmp_path_factory.mktemp("image") / "root", sys.executable, *([smi] if smi else []))
    if smi is not None:
        (root / smi.lstrip("/")).unlink()  # its libraries stay: the program comes from the machine
    assert not list(root.rglob("libcuda*"))
    return root


def in_image(cluster: Cluster, image: Path, *words: str, **how: str) -> subprocess.CompletedProcess[str]:
    python = os.path.realpath(sys.executable)
    mounts = f"--container-mounts={python_mounts()},{PROGRAM}:/cuda_driver.py:ro"
    program = words or (python, "/cuda_driver.py")
    command = ("srun", "--gpus=1", f"--container-image={image}", mounts, *program)
    return cluster.run(*command, check=False, env=how)


def test_a_cuda_program_finds_the_machines_driver(
    machine: Cluster, cards: tuple[GpuInfo, ...], image: Path, report: Report
) -> None:
    done = in_image(machine, image)
    report("CUDA in an image", done.stdout + done.stderr)
    seen = json.loads(done.stdout)
    assert (seen["count"], seen["kept"], len(seen["files"])) == (1, True, 1)
    assert seen["files"] == [cards[0].device_file]


def test_nvidia_smi_is_there_and_sees_the_jobs_card_alone(machine: Cluster, image: Path, report: Report) -> None:
    done = in_image(machine, image, "nvidia-smi", "-L")
    report("nvidia-smi -L in an image", done.stdout + done.stderr)
    assert done.stdout.count("GPU ") == 1, done.stderr


@pytest.mark.parametrize("wish", ["void", "none"])
def test_an_image_that_wants_no_gpu_gets_none(machine: Cluster, image: Path, wish: str) -> None:
    done = in_image(machine, image, "sh", "-c", "ls /dev/nvidia* 2>/dev/null | wc -l", NVIDIA_VISIBLE_DEVICES=wish)
    assert done.stdout.strip() == "0", done.stderr


def test_without_gpus_a_job_sees_no_card(machine: Cluster, image: Path) -> None:
    done = machine.run("srun", f"--container-image={image}", "sh", "-c", "ls /dev/nvidia[0-9]* 2>/dev/null | wc -l")
    assert done.stdout.strip() == "0"
