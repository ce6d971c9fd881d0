"""Fences and restarts on a real Slurm: nodes are drained and given back, failed jobs queued again, in its own words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.slurm_attached import Attached, attached


@pytest.fixture(scope="module")
def both() -> Iterator[Attached]:
    with attached(for_everyone=True) as bireme:
        yield bireme


def healings(both: Attached) -> list[dict[str, Any]]:
    return list(json.loads(both.bireme("healings", "--all", "--json").stdout)["healings"])


def of_node(both: Attached, node: str) -> tuple[str, str]:
    """State and reason, as Slurm itself says them."""
    state, _, reason = both.slurm.call("sinfo", "-h", "-N", "-n", node, "-o", "%T|%E").split("\n")[0].partition("|")
    return state, reason


def a_node(both: Attached) -> str:
    return str(both.slurm.call("sinfo", "-h", "-N", "-o", "%N").split("\n")[0])


def test_a_fence_drains_the_node_in_slurm_and_an_undo_resumes_it(both: Attached) -> None:
    node = a_node(both)
    both.bireme("healings", "fence", node, "--reason", "its NIC flaps", "--last-too")
    both.slurm.until(lambda: of_node(both, node)[0].startswith("drain"), "it is drained")
    assert of_node(both, node)[1] == "its NIC flaps"
    both.slurm.until(lambda: "its NIC flaps" in both.run("sinfo", "-R", "-h", "-o", "%E").stdout, "Bireme shows it")
    both.bireme("healings", "undo", str(healings(both)[0]["id"]))
    both.slurm.until(lambda: not of_node(both, node)[0].startswith("drain"), "it is resumed")


def test_who_resumes_it_in_slurm_lifts_the_fence(both: Attached) -> None:
    node = a_node(both)
    both.bireme("healings", "fence", node, "--reason", "again", "--last-too")
    both.slurm.until(lambda: of_node(both, node)[0].startswith("drain"), "it is drained")
    both.slurm.until(lambda: "again" in both.run("sinfo", "-R", "-h", "-o", "%E").stdout, "Bireme has seen it")
    both.slurm.call("scontrol", "update", f"nodename={node}", "state=resume")
    both.slurm.until(lambda: healings(both)[0]["state"] == "undone", "the fence is lifted")
    assert not of_node(both, node)[0].startswith("drain")


FAILS_ONCE = """#!/bin/bash
#SBATCH --job-name=fails --requeue --nodes=1 --output={folder}/fails-%j
[ -n "$SLURM_RESTART_COUNT" ] && { echo "start $SLURM_RESTART_COUNT on $SLURMD_NODENAME"; exit 0; }
echo "first on $SLURMD_NODENAME"
echo "RuntimeError: CUDA error: uncorrectable ECC error encountered" >&2
exit 1
"""


def restart_of(both: Attached, job: str) -> dict[str, Any]:
    of_job = (each for each in healings(both) if each["place"].startswith(f"job {job}."))
    return next(of_job, {"state": "", "act": ""})


def test_a_job_that_failed_of_its_node_is_queued_again_without_it_when_that_is_approved(
    both: Attached,
) -> None:
    script = both.work / "fails.sh"
    script.write_text(FAILS_ONCE.replace("{folder}", str(both.work)))
    job = both.run("sbatch", "--parsable", str(script)).stdout.strip()
    both.slurm.until(lambda: restart_of(both, job)["state"] == "observed", "what would be done is listed, and not done")
    proposal = restart_of(both, job)
    first = (both.work / f"fails-{job}").read_text().split()[2]
    assert proposal["title"] == f"have Slurm queue job {job} again, without {first}"
    assert "JobState=FAILED" in both.slurm.call("scontrol", "show", "job", job)
    both.bireme("healings", "approve", str(proposal["id"]))
    both.slurm.until(lambda: "start 1 on" in (both.work / f"fails-{job}").read_text(), "it runs again")
    assert f"start 1 on {first}\n" not in (both.work / f"fails-{job}").read_text()
    assert f"ExcNodeList={first}" in both.slurm.call("scontrol", "show", "job", job)
    both.slurm.until(lambda: restart_of(both, job)["state"] == "done", "and that is written down")


def test_a_job_that_asked_for_nothing_is_left_as_slurm_has_it(both: Attached) -> None:
    job = both.run("sbatch", "--parsable", "--wrap", "exit 3").stdout.strip()
    asked = both.run("sbatch", "--parsable", "--requeue", "--wrap", "exit 3").stdout.strip()
    both.slurm.until(lambda: restart_of(both, asked)["state"], "of who asked something is decided")
    assert restart_of(both, job)["state"] == ""
