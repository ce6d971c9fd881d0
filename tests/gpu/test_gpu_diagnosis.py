"""Jobs that die on a real card: the right cause, for the right job, by what the driver, the kernel and the log say."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.gpu.asking import Report
from tests.gpu.test_gpu_telemetry import STORE
from tests.support.cluster import Cluster
from tests.support.measured import ask, until

from bireme.gather.gpus.kernel_log import KernelLog

pytestmark = pytest.mark.gpu

INDEX = (
    "import torch; t = torch.zeros(10, device='cuda'); t[torch.tensor([99], device='cuda')]; torch.cuda.synchronize()"
)
GREEDY = "import torch; held = [torch.empty(1 << 34, dtype=torch.uint8, device='cuda') for _ in range(64)]"


@pytest.fixture(scope="module")
def measured(report: Report) -> Iterator[Cluster]:
    made = Cluster()
    made.variables |= {"BIREME_TELEMETRY_GATHER": "on", "BIREME_TELEMETRY_INTERVAL_S": "1"}
    try:
        report("bireme up", made.bireme("up").stdout)
        until(lambda: ask(made, "/v1/telemetry/now")["gpus"] or None, "no card is measured")
        yield made
    finally:
        left = made.stop()
    assert not left


def failed(cluster: Cluster, command: str, state: str = "FAILED") -> int:
    script = cluster.script(f"{command}\n", "fails.sh")
    job_id = cluster.sbatch("--output=fails-%j.out", "--gpus=1", str(script))
    ended = cluster.wait(job_id)
    assert ended["state"] == state, cluster.output(job_id) + cluster.log_tail()
    return job_id


def xids(cluster: Cluster, job_id: int) -> list[dict[str, Any]]:
    lines = ask(cluster, f"/v1/jobs/{job_id}/evidence")["lines"]
    return [line for line in lines if line["source"] == "device" and line["text"].startswith("Xid")]


def diagnosis(cluster: Cluster, job_id: int, report: Report) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(cluster.bireme("diagnose", "--json", str(job_id)).stdout)
    report(f"diagnosis of job {job_id}", cluster.bireme("diagnose", str(job_id)).stdout)
    over_http = ask(cluster, f"/v1/jobs/{job_id}/diagnosis")
    assert (over_http["cause"], over_http["confidence"]) == (told["cause"], told["confidence"])
    return told


def test_an_index_out_of_range(measured: Cluster, torch_python: str, report: Report) -> None:
    job_id = failed(measured, shlex.join([torch_python, "-c", INDEX]))
    until(lambda: xids(measured, job_id) or None, "no Xid 43 of the job")
    assert {line["text"].partition(",")[0] for line in xids(measured, job_id)} == {"Xid 43"}
    told = diagnosis(measured, job_id, report)
    assert (told["cause"], told["confidence"], told["who"]) == ("index_out_of_range", "high", "you")
    assert any("assert" in quoted["text"] for quoted in told["evidence"])


def test_a_store_out_of_range_of_which_only_the_driver_tells(measured: Cluster, tmp_path: Path, report: Report) -> None:
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("no nvcc to make the program of")
    (tmp_path / "store.cu").write_text(STORE)
    subprocess.run([compiler, "-o", tmp_path / "store", tmp_path / "store.cu"], check=True, timeout=120)
    job_id = failed(measured, str(tmp_path / "store"))
    until(lambda: xids(measured, job_id) or None, "no Xid 31 of the job")
    told = diagnosis(measured, job_id, report)
    assert told["cause"] == "illegal_memory_access"
    assert any(quoted["source"] == "device" and "Xid 31" in quoted["text"] for quoted in told["evidence"])
    if not KernelLog().problem:
        assert any("pid=" in line["text"] for line in xids(measured, job_id))


def test_a_job_after_it_on_the_same_card_is_not_blamed(measured: Cluster, torch_python: str, report: Report) -> None:
    first = failed(measured, shlex.join([torch_python, "-c", INDEX]))
    until(lambda: xids(measured, first) or None, "no Xid of the job")
    second = failed(measured, "exit 3")
    assert xids(measured, second) == []
    assert diagnosis(measured, second, report)["cause"] not in (
        "index_out_of_range",
        "illegal_memory_access",
        "gpu_fault",
    )


def test_out_of_gpu_memory(measured: Cluster, torch_python: str, report: Report) -> None:
    told = diagnosis(measured, failed(measured, shlex.join([torch_python, "-c", GREEDY])), report)
    assert (told["cause"], told["confidence"]) == ("gpu_out_of_memory", "high")


def test_a_kill(measured: Cluster, report: Report) -> None:
    told = diagnosis(measured, failed(measured, "srun bash -c 'kill -KILL $$'"), report)
    assert told["confidence"] in ("low", "none")
    assert any("signal 9" in quoted["text"] for quoted in told["evidence"])
