"""`--container-mounts` and its kin in pods: on the volumes that the settings give, or refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bireme.core.model.jobs import Job, JobSpec, Owner, Pending
from bireme.core.model.resources import Allocation, NodeShare
from bireme.engines.kubernetes.asked_mounts import asked_mounts, refusal
from bireme.engines.kubernetes.nodes import Amounts
from bireme.engines.kubernetes.pods import Mount, PodRules, Size, _container

SPEC = JobSpec(owner=Owner(uid=1000, gid=1000, user="ada"), work_dir="/data/ada")
VOLUMES = (Mount("/data", {"name": "all"}), Mount("/data/fast/", {"name": "fast"}), Mount("/ro", {}, read_only=True))


@pytest.mark.parametrize(
    ("asked", "mounted"),
    [
        ("/data/set:/set", [{"name": "volume-0", "mountPath": "/set", "subPath": "set", "readOnly": False}]),
        ("./out:/out:ro", [{"name": "volume-0", "mountPath": "/out", "subPath": "ada/out", "readOnly": True}]),
        ("/data/fast:/f", [{"name": "volume-1", "mountPath": "/f", "readOnly": False}]),
        ("/ro:/x", [{"name": "volume-2", "mountPath": "/x", "readOnly": True}]),
        ("tmpfs:/mem", [{"name": "memory-0", "mountPath": "/mem"}]),
    ],
)
def test_what_lies_on_a_volume_is_mounted(asked: str, mounted: list[dict[str, object]]) -> None:
    spec = replace(SPEC, container_mounts=asked)
    assert refusal(spec, VOLUMES) == ""
    assert asked_mounts(spec, VOLUMES)[0] == mounted


@pytest.mark.parametrize("asked", ["/etc:/etc2", "/database:/x", "/data/../root:/x"])
def test_a_folder_of_the_node_is_refused(asked: str) -> None:
    said = refusal(replace(SPEC, container_mounts=asked), VOLUMES)
    assert "is on no volume of this cluster's jobs (/data, /data/fast/, /ro)" in said
    assert "kubernetes.volumes" in said


def test_with_its_entry_point_an_image_starts_the_agent_itself() -> None:
    rules, allocation = PodRules(cluster="c", image="bireme"), Allocation(7, 1, "main", (NodeShare("n1", 1, 0),))
    size = Size.of(allocation.shares[0], Amounts(4, 1000))
    for entrypoint, key in ((True, "args"), (False, "command"), (None, "command")):
        job = Job(id=7, spec=replace(SPEC, container_entrypoint=entrypoint), submitted_at=0.0, phase=Pending(0.0))
        made = _container(rules, job, allocation, size, (), [])
        assert made[key][-1].endswith("/pod.json")
        assert not {"args", "command"} <= made.keys()
