"""What a start of a job looks like in Kubernetes, where that depends on the job."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from bireme.core.model.jobs import Job, JobSpec, Owner, Pending
from bireme.core.model.resources import Allocation, NodeShare
from bireme.engines.kubernetes.gateway import Berth, Gateway
from bireme.engines.kubernetes.pods import Mount, PodRules, scratch_folder, secret, start_name

RULES = PodRules(cluster="c", image="bireme", mounts=(Mount("/data", {}),))


@pytest.mark.parametrize(
    ("work_dir", "submit_dir", "scratch"),
    [
        ("/home/ada/run", "/home/ada/run", "/home/ada/run"),
        ("/home/ada/run/", "/home/ada/run", "/home/ada/run"),
        ("/data/run", "/data/run", ""),
        ("/data", "/data", ""),
        ("/workspace/app", "/home/ada", ""),
        ("/", "/", ""),
        ("/root", "/root", ""),
        ("/usr/share/app", "/usr/share/app", ""),
    ],
)
def test_the_folder_of_submission_is_there_unless_the_image_or_a_volume_has_it(
    work_dir: str, submit_dir: str, scratch: str
) -> None:
    spec = JobSpec(owner=Owner(uid=1000, gid=1000, user="ada"), work_dir=work_dir, submit_dir=submit_dir)
    assert scratch_folder(RULES.mounts, spec) == scratch


@pytest.mark.parametrize(("cluster", "name"), [("bireme", "bireme-7-1"), ("Team_A.prod", "team-a-prod-7-1")])
def test_names_of_two_clusters_in_one_namespace_differ(cluster: str, name: str) -> None:
    assert start_name(PodRules(cluster=cluster, image="bireme"), 7, 1) == name


@pytest.mark.parametrize(
    ("account", "partition", "seen"),
    [
        ("other", "main", {"/data": "everybody"}),
        ("other", "gpu", {"/data": "gpu"}),
        ("ml", "main", {"/data": "everybody", "/models": "ml"}),
        ("ml", "gpu", {"/data": "gpu", "/models": "ml"}),
    ],
)
def test_volumes_are_those_of_everybody_of_the_partition_and_of_the_account(
    account: str, partition: str, seen: dict[str, str]
) -> None:
    rules = PodRules(
        cluster="c",
        image="bireme",
        mounts=(
            Mount("/data", {"name": "gpu"}, partition="gpu"),
            Mount("/data/", {"name": "everybody"}),
            Mount("/models", {"name": "ml"}, account="ml"),
        ),
    )
    spec = JobSpec(owner=Owner(uid=1000, gid=1000, user="ada"), account=account)
    job = Job(id=7, spec=spec, submitted_at=0.0, phase=Pending(0.0))
    found = rules.mounts_of(job, Allocation(7, 1, partition, ()))
    assert {mount.path.rstrip("/"): mount.source["name"] for mount in found} == seen


MOST_SECRET_BYTES = 1 << 20
"""Of what a Secret holds, as Kubernetes counts it."""


@pytest.mark.parametrize("name", ["node-{}", "{:0>253}"], ids=["short names", "the longest names"])
def test_the_secret_of_two_thousand_nodes_is_one_that_kubernetes_takes(name: str, tmp_path: Path) -> None:
    nodes = [name.format(number) for number in range(2000)]
    gateway = Gateway(tmp_path, tmp_path, b"key", tmp_path, *3 * [lambda *_: None])  # type: ignore[arg-type]
    tokens = {node: gateway.token(Berth(123_456, 12, node)) for node in nodes}
    job = Job(id=123_456, spec=JobSpec(owner=Owner(uid=1, gid=1, user="ada")), submitted_at=0.0, phase=Pending(0.0))
    allocation = Allocation(123_456, 12, "main", tuple(NodeShare(node, 1, 0) for node in nodes))
    made = secret(PodRules(cluster="c", image="bireme", authority="x" * 1000), job, allocation, tokens, 30.0)
    held = [base64.b64decode(value) for value in made["data"].values()]
    assert sum(map(len, held)) < 0.7 * MOST_SECRET_BYTES
    assert set(tokens.values()) <= {value.decode() for value in held}
