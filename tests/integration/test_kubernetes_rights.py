"""Who may what, and what a daemon says that may not start: a real API server, without nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kubernetes_cluster.cluster import Kubernetes, missing, running

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
ACCOUNT = "system:serviceaccount:bireme:bireme"


@pytest.fixture(scope="module")
def kubernetes() -> Iterator[Kubernetes]:
    with running() as cluster:
        cluster.kubectl("apply", "-k", str(DEPLOY))
        yield cluster


def may(kubernetes: Kubernetes, verb: str, what: str, namespace: str) -> bool:
    try:
        resource, _, part = what.partition("/")
        words = ["auth", "can-i", verb, resource, "-n", namespace, f"--as={ACCOUNT}"]
        said = kubernetes.kubectl(*words, *([f"--subresource={part}"] if part else []))
    except RuntimeError:
        return False
    return said.strip() == "yes"


@pytest.mark.parametrize(
    ("verb", "what", "namespace"),
    [("list", "nodes", ""), ("watch", "pods", "default"), ("create", "pods/binding", "default"),
     ("create", "pods", "bireme"), ("delete", "pods", "bireme"), ("create", "secrets", "bireme"),
     ("update", "leases.coordination.k8s.io", "bireme")],
)  # fmt: skip
def test_the_daemon_may_do_its_work(kubernetes: Kubernetes, verb: str, what: str, namespace: str) -> None:
    assert may(kubernetes, verb, what, namespace or "default")


@pytest.mark.parametrize(
    ("verb", "what", "namespace"),
    [("get", "secrets", "default"), ("list", "secrets", "kube-system"), ("create", "pods", "default"),
     ("delete", "pods", "kube-system"), ("create", "pods/exec", "bireme"), ("get", "pods/log", "bireme"),
     ("delete", "nodes", "default"), ("patch", "nodes", "default"), ("create", "serviceaccounts/token", "bireme"),
     ("create", "deployments.apps", "bireme"), ("create", "clusterrolebindings.rbac.authorization.k8s.io", "default"),
     ("impersonate", "users", "default"), ("escalate", "clusterroles.rbac.authorization.k8s.io", "default")],
)  # fmt: skip
def test_the_daemon_may_do_nothing_else(kubernetes: Kubernetes, verb: str, what: str, namespace: str) -> None:
    assert not may(kubernetes, verb, what, namespace)


# --- what cannot start says so in one sentence -----------------------------------------------------------------


def up(home: Path, kubeconfig: Path | str, *options: str, **settings: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BIREME_", "KUBE"))}
    named = {f"BIREME_KUBERNETES_{name.upper()}": value for name, value in settings.items()}
    variables = {**kept, "BIREME_HOME": str(home), "KUBECONFIG": str(kubeconfig), **named}
    command = [sys.executable, "-m", "bireme", "up", "--quiet", "--engine", "kubernetes", "--conf", "none", *options]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=120)


def down(home: Path) -> None:
    subprocess.run([sys.executable, "-m", "bireme", "down", "--quiet", "--home", str(home)], check=True)


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The sentence; anything longer would be a crash."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr


def test_a_kubeconfig_that_is_missing_or_names_no_such_context(kubernetes: Kubernetes, tmp_path: Path) -> None:
    said = refusal(up(tmp_path / "home", tmp_path / "none"))
    assert "no usable kubeconfig" in said
    said = refusal(up(tmp_path / "home", kubernetes.kubeconfig, "--context", "elsewhere"))
    assert "elsewhere" in said


def test_a_cluster_that_does_not_answer(kubernetes: Kubernetes, tmp_path: Path) -> None:
    config = json.loads(kubernetes.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    (tmp_path / "config").write_text(json.dumps(config))
    assert "https://127.0.0.1:9 does not answer" in refusal(up(tmp_path / "home", tmp_path / "config"))


def test_credentials_that_are_not_valid(kubernetes: Kubernetes, tmp_path: Path) -> None:
    config = json.loads(kubernetes.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": "expired"}
    (tmp_path / "config").write_text(json.dumps(config))
    assert "credentials of the kubeconfig are not valid" in refusal(up(tmp_path / "home", tmp_path / "config"))


def test_a_namespace_without_rights(kubernetes: Kubernetes, tmp_path: Path) -> None:
    nobody = kubernetes.plane.identity("nobody")
    said = refusal(up(tmp_path / "home", nobody))
    assert "nobody" in said
    assert "cannot" in said


def test_two_daemons_at_once(kubernetes: Kubernetes, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    done = up(first, kubernetes.plane.identity(ACCOUNT), namespace="bireme")
    assert done.returncode == 0, done.stderr
    try:
        said = refusal(up(second, kubernetes.kubeconfig, namespace="bireme"))
        assert "another daemon schedules this cluster" in said
        assert str(first) in said
    finally:
        down(first)
    assert up(second, kubernetes.kubeconfig, namespace="bireme").returncode == 0, "a daemon that ends gives it back"
    down(second)
