"""A cluster nobody configured finds the card, gives it to one job at a time, and keeps it from all others."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.gpu.asking import Report
from tests.support.cluster import Cluster

from bireme.agent.confining.confinement import probe
from bireme.agent.devices.gpus import GpuInfo

pytestmark = pytest.mark.gpu

LOOK = Path(__file__).parent / "look.py"
VISIBLE = ("CUDA_VISIBLE_DEVICES", "SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS")


def gres_of(cards: tuple[GpuInfo, ...]) -> str:
    """The GRES text of a machine whose cards are all of one type, as AutoDetect writes it."""
    types = [gpu.slurm_type for gpu in cards]
    if len(set(types)) > 1:
        pytest.skip(f"the cards are of several types: {', '.join(types)}")
    return f"gpu:{types[0]}:{len(types)}"


def look(cluster: Cluster, cards: tuple[GpuInfo, ...], *options: str, torch: str = "") -> list[dict[str, Any]]:
    """What a job with these options sees of the GPUs: in its script, then in a step of it."""
    words = [sys.executable, str(LOOK), *(gpu.device_file for gpu in cards if gpu.device_file)]
    words += ["--torch", torch] if torch else []
    script = cluster.script(f"{shlex.join(words)}\nsrun {shlex.join(words)}\n", "look.sh")
    # Somebody who submits from a shell that sees GPUs: the job must see its own, or none.
    job_id = cluster.sbatch("--output=look-%j.out", *options, str(script), env={"CUDA_VISIBLE_DEVICES": "6,7"})
    ended = cluster.wait(job_id)
    assert ended["state"] == "COMPLETED", cluster.output(job_id) + cluster.log_tail()
    return [json.loads(line) for line in cluster.output(job_id).splitlines() if line.startswith("{")]


def devices_are_confined() -> tuple[bool, str]:
    capability = next(one for one in probe() if one.name == "confine devices")
    return capability.ok, capability.why


def test_sinfo_and_scontrol_show_the_card(machine: Cluster, cards: tuple[GpuInfo, ...], report: Report) -> None:
    gres = gres_of(cards)
    shown = machine.run("sinfo", "--noheader", "--format=%G").stdout.strip()
    node = machine.run("scontrol", "show", "node").stdout
    report("sinfo -o %G", shown)
    report("scontrol show node", node)
    # Slurm adds the sockets next to the cards, where it knows them.
    assert re.fullmatch(re.escape(gres) + r"(\(S:[\d,-]+\))?", shown)
    assert re.search(rf"^\s*Gres={re.escape(gres)}(\(S:[\d,-]+\))?$", node, re.MULTILINE)


def test_a_job_with_a_gpu_sees_the_one_it_was_given(
    machine: Cluster, cards: tuple[GpuInfo, ...], report: Report
) -> None:
    script, step = look(machine, cards, "--gpus=1")
    report("job with --gpus=1", json.dumps(script))
    assert {name: script["variables"].get(name) for name in VISIBLE} == dict(zip(VISIBLE, ("0", "1", "0"), strict=True))
    assert step["variables"]["CUDA_VISIBLE_DEVICES"] == "0"
    assert step["variables"]["SLURM_STEP_GPUS"] == "0"
    assert [seen["files"][cards[0].device_file] for seen in (script, step)] == ["opened", "opened"]
    if script["nvidia_smi"] is not None:
        assert cards[0].uuid in script["nvidia_smi"]


def test_a_job_without_gpus_has_none_in_its_variables(
    machine: Cluster, cards: tuple[GpuInfo, ...], report: Report
) -> None:
    """Slurm takes the variables away, also those of the submitting shell; older versions wrote NoDevFiles."""
    script, step = look(machine, cards)
    report("job without GPUs", json.dumps(script))
    assert script["variables"] == {}
    assert step["variables"] == {}


def test_a_job_without_gpus_cannot_open_the_card(machine: Cluster, cards: tuple[GpuInfo, ...]) -> None:
    confined, how = devices_are_confined()
    if not confined:
        pytest.skip(f"devices cannot be confined here: {how}")
    for seen in look(machine, cards):
        assert set(seen["files"].values()) == {"EPERM"}
        assert "GPU 0:" not in (seen["nvidia_smi"] or "")


def test_cuda_works_with_the_card_and_not_without(
    machine: Cluster, cards: tuple[GpuInfo, ...], torch_python: str, report: Report
) -> None:
    given, _ = look(machine, cards, "--gpus=1", torch=torch_python)
    report("torch in a job with --gpus=1", given["torch"])
    assert given["torch"] == f"1 {cards[0].model} 2048.0"
    confined, how = devices_are_confined()
    refused, _ = look(machine, cards, torch=torch_python)
    report("torch in a job without GPUs", refused["torch"])
    if not confined:
        pytest.skip(f"devices cannot be confined here: {how}")
    assert refused["torch"].splitlines()[-1] == "0 none None"


def test_the_card_is_one_jobs_at_a_time(machine: Cluster, cards: tuple[GpuInfo, ...], report: Report) -> None:
    gate, diary = machine.work / "gate", machine.work / "diary"
    all_cards = f"--gpus={len(cards)}"
    script = machine.script(
        f"""\
echo "$SLURM_JOB_ID starts" >> {diary}
until [ -e {gate} ]; do sleep 0.05; done
echo "$SLURM_JOB_ID ends" >> {diary}
""",
        "alone.sh",
    )
    first, second = (machine.sbatch(all_cards, "--output=/dev/null", str(script)) for _ in range(2))
    machine.until_started(first)
    waiting = machine.run("squeue", "--noheader", "--format=%i %t %r").stdout
    held = machine.run("scontrol", "--details", "show", "node").stdout
    report("while the first of two holds the card", waiting)
    assert f"{second} PD Resources" in waiting
    assert f"GresUsed={gres_of(cards)}(IDX:0" in held
    gate.touch()
    ended = [machine.wait(job_id)["state"] for job_id in (first, second)]
    assert ended == ["COMPLETED", "COMPLETED"]
    assert diary.read_text().split("\n")[:-1] == [
        f"{job} {word}" for job in (first, second) for word in ("starts", "ends")
    ]


def test_more_cards_than_there_are_is_refused_at_once(machine: Cluster, cards: tuple[GpuInfo, ...]) -> None:
    script = machine.script("true\n", "greedy.sh")
    refused = machine.run("sbatch", f"--gpus={len(cards) + 1}", str(script), check=False)
    assert refused.returncode == 1
    assert "Requested node configuration is not available" in refused.stderr
