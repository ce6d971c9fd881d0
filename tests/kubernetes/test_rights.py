"""Who may what, and what a daemon says that may not start: a real API server, without nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.kubernetes_cluster.certificates import Authority
from tests.kubernetes_cluster.cluster import Kubernetes, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
ACCOUNT = "system:serviceaccount:bireme:bireme"


@pytest.fixture(scope="module", autouse=True)
def _deployed(kubernetes: Kubernetes) -> Iterator[None]:
    """Its daemon stays pending: nothing here schedules it."""
    kubernetes.kubectl("apply", "-k", str(DEPLOY))
    yield
    kubernetes.kubectl("delete", "-k", str(DEPLOY))


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
     ("list", "events", "bireme"),
     ("update", "leases.coordination.k8s.io", "bireme"), ("watch", "csinodes.storage.k8s.io", "")],
)  # fmt: skip
def test_the_daemon_may_do_its_work(kubernetes: Kubernetes, verb: str, what: str, namespace: str) -> None:
    assert may(kubernetes, verb, what, namespace or "default")


@pytest.mark.parametrize(
    ("verb", "what", "namespace"),
    [("get", "secrets", "default"), ("list", "secrets", "kube-system"), ("create", "pods", "default"),
     ("delete", "pods", "kube-system"), ("create", "pods/exec", "bireme"), ("get", "pods/log", "bireme"),
     ("list", "events", "default"),
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


def test_a_kubeconfig_of_another_cluster_is_not_trusted(kubernetes: Kubernetes, tmp_path: Path) -> None:
    """Of one that has this address no more, or never had it."""
    other = Authority(tmp_path / "pki").kubeconfig(kubernetes.plane.server, "admin", ("system:masters",))
    said = refusal(up(tmp_path / "home", other))
    assert f"the kubeconfig does not trust {kubernetes.plane.server}" in said
    assert "it is of another cluster, or the cluster was made anew" in said


def test_a_home_whose_jobs_are_on_another_cluster(kubernetes: Kubernetes, tmp_path: Path) -> None:
    assert up(tmp_path / "home", kubernetes.kubeconfig, namespace="bireme").returncode == 0
    down(tmp_path / "home")
    remembered = tmp_path / "home" / "kubernetes" / "cluster"
    remembered.write_text(f"{'0' * 64} https://elsewhere:6443\n")
    said = refusal(up(tmp_path / "home", kubernetes.kubeconfig, namespace="bireme"))
    assert "the jobs of this home are on another Kubernetes cluster (https://elsewhere:6443)" in said
    assert "a home of its own (--home DIR)" in said
    remembered.unlink()
    assert up(tmp_path / "home", kubernetes.kubeconfig, namespace="bireme").returncode == 0, "as the sentence says"
    down(tmp_path / "home")


def test_a_kubernetes_that_is_too_old(kubernetes: Kubernetes, tmp_path: Path) -> None:
    with old_server() as address:
        config = json.loads(kubernetes.kubeconfig.read_text())
        config["clusters"][0]["cluster"] = {"server": address}
        (tmp_path / "config").write_text(json.dumps(config))
        said = refusal(up(tmp_path / "home", tmp_path / "config"))
    assert f"{address} runs Kubernetes 1.28; Bireme needs 1.29 or newer, and is tested with 1.36" in said


@contextmanager
def old_server() -> Iterator[str]:
    """Says that it is a Kubernetes 1.28, as those of a vendor say it."""

    class Old(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"major": "1", "minor": "28+", "gitVersion": "v1.28.4-vendor"}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Old) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_namespace_without_rights(kubernetes: Kubernetes, tmp_path: Path) -> None:
    nobody = kubernetes.plane.identity("nobody")
    said = refusal(up(tmp_path / "home", nobody))
    assert 'User "nobody" cannot get resource "leases"' in said
    assert "deploy/kubernetes/rights.yaml" in said


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


def test_to_mark_nodes_is_a_right_of_its_own(kubernetes: Kubernetes) -> None:
    assert not may(kubernetes, "patch", "nodes", "default")
    kubernetes.kubectl("apply", "-k", str(DEPLOY / "fencing"))
    try:
        assert may(kubernetes, "patch", "nodes", "default")
        assert may(kubernetes, "patch", "nodes/status", "default")
        assert not may(kubernetes, "delete", "nodes", "default")
    finally:
        kubernetes.kubectl("delete", "-k", str(DEPLOY / "fencing"))
