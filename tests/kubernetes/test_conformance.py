"""The engine conformance suite on real kubelets: its port, and a cluster on it, used as people use it."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.deployed import ClusterDeployment, check_on, service_check_on
from tests.conformance.in_folder import FolderBench
from tests.kubernetes_cluster.cluster import Kubernetes, missing
from tests.support.cluster import ROOT
from tests.support.kubernetes import BASH, IMAGE, KubernetesCluster

from bireme.core.model.cluster import ClusterConfig
from bireme.engines.kubernetes.engine import KubernetesEngine
from bireme.engines.kubernetes.pods import Mount, PodRules
from bireme.engines.kubernetes.settings import KubernetesSettings
from bireme.ports import Engine
from bireme.testing.conformance.checks import Check, NotApplicable
from bireme.testing.conformance.port import PORT_CHECKS, PortBody, run_port_check
from bireme.testing.conformance.scripts import SCRIPT_CHECKS, ScriptBody
from bireme.testing.conformance.services import SERVICE_CHECKS, ServiceBody

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


_NUMBERS = itertools.count(1)


class KubernetesBench(FolderBench):
    nodes = ("node1", "node2")
    patience_s = 120.0

    def __init__(self, folder: Path, kubernetes: Kubernetes) -> None:
        super().__init__(folder)
        self._kubernetes = kubernetes
        self._cluster = f"bench{next(_NUMBERS)}"  # kubelets finish with a pod before they begin one of the same name

    def new_engine(self) -> KubernetesEngine:
        settings = KubernetesSettings(
            kubeconfig=str(self._kubernetes.kubeconfig), gateway_host=self._kubernetes.slot.host_address
        )
        here = Mount(str(self.folder), {"hostPath": {"path": str(self.folder)}})
        config = ClusterConfig(name=self._cluster)
        rules = PodRules(cluster=self._cluster, image=IMAGE, default_image=BASH, pull_policy="Never", mounts=(here,))
        return KubernetesEngine(self.folder / "home", config, self, settings, rules)

    async def restart_node(self, node: str) -> None:
        await asyncio.to_thread(remove_pods, self._kubernetes, node)

    async def end(self, engine: Engine) -> None:
        await super().end(engine)
        for node in self.nodes:
            await asyncio.to_thread(remove_pods, self._kubernetes, node)


def remove_pods(kubernetes: Kubernetes, node: str) -> None:
    """They are gone at once, and nobody says how they ended."""
    words = ("delete", "pods", "-A", "--grace-period=0", "--force", f"--field-selector=spec.nodeName={node}")
    kubernetes.kubectl(*words)


@pytest.mark.parametrize("check", list(PORT_CHECKS), ids=str)
def test_port(kubelets: Kubernetes, check: Check[PortBody], tmp_path: Path) -> None:
    try:
        asyncio.run(run_port_check(check, KubernetesBench(tmp_path, kubelets)))
    except NotApplicable as reason:
        pytest.skip(str(reason))


class KubernetesDeployment(ClusterDeployment):
    nodes = ("node1", "node2")
    cluster: KubernetesCluster

    def __init__(self, cluster: KubernetesCluster) -> None:
        self.cluster = cluster

    def restart_node(self, node: str) -> None:
        remove_pods(self.cluster.kubernetes, node)

    def is_clear(self, job: str) -> bool:
        return not any(name.startswith(f"bireme-{job}-") for name in self.cluster.pods())


@pytest.fixture(scope="module")
def deployment(kubelets: Kubernetes) -> Iterator[KubernetesDeployment]:
    with KubernetesCluster(kubelets, job_images=[BASH]).running() as cluster:
        yield KubernetesDeployment(cluster)


@pytest.mark.parametrize("check", list(SCRIPT_CHECKS), ids=str)
def test_scripts(deployment: KubernetesDeployment, check: Check[ScriptBody]) -> None:
    check_on(deployment, check)


@pytest.mark.parametrize("check", list(SERVICE_CHECKS), ids=str)
def test_services(deployment: KubernetesDeployment, check: Check[ServiceBody]) -> None:
    service_check_on(deployment, check)


def test_the_demos_scripts_run_unchanged(deployment: KubernetesDeployment) -> None:
    """With options that fit two small nodes, as anybody gives them on the command line."""
    cluster = deployment.cluster
    jobs = shutil.copytree(ROOT / "examples" / "jobs", cluster.work / "jobs")

    def submit(name: str, *options: str) -> str:
        return cluster.sbatch(*options, str(jobs / f"{name}.sh"))

    gang = submit("gang", "--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=2")
    sweep = submit("sweep", "--array=0-3%2")
    prepare = submit("prepare")
    train = submit("train", f"--dependency=afterok:{prepare}")
    evaluate = submit("evaluate", f"--dependency=afterok:{train}")
    resume = submit("resume")
    for job in (gang, sweep, prepare, train, evaluate, resume):
        assert cluster.wait(job)["state"] == "COMPLETED", cluster.log_tail()
    written = {path.name: path.read_text() for path in cluster.work.glob("*.out")}
    assert "all 4 ranks met at node1:" in written[f"gang-{gang}.out"]
    assert "4 different GPUs on node1, node2" in written[f"gang-{gang}.out"]
    assert [f"task {task} of 4" in written[f"sweep-{sweep}_{task}.out"] for task in range(4)] == 4 * [True]
    assert written[f"chain-{train}.out"] == "train: reads tokens with GPUs 0,1\n"
    assert sorted(written[f"chain-{evaluate}.out"].splitlines()) == [
        "0: evaluate: shard 0 of 2 is fine",
        "1: evaluate: shard 1 of 2 is fine",
    ]
    assert "start 1: resuming at step 5" in written[f"resume-{resume}.out"]
    assert "done: 10 steps in 2 starts" in written[f"resume-{resume}.out"]
