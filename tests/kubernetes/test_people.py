"""Whose a job's pod is, what it may do, and in which namespace it is."""

from __future__ import annotations

import base64
import json
import pwd
from collections.abc import Iterator
from typing import Any

import pytest
from tests.kubernetes_cluster.cluster import Kubernetes, missing
from tests.support.kubernetes import KubernetesCluster

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
LONG_S = 120.0
OTHER, TEAM = "nobody", "team-space"


@pytest.fixture(scope="module")
def cluster(kubelets: Kubernetes) -> Iterator[KubernetesCluster]:
    kubelets.kubectl("create", "namespace", TEAM)
    try:
        with KubernetesCluster(kubelets, for_everyone=True, account_namespaces=[f"team={TEAM}"]).running() as bireme:
            yield bireme
    finally:
        kubelets.kubectl("delete", "namespace", TEAM)


def objects(cluster: KubernetesCluster, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.kubernetes.api.get(f"/api/v1/namespaces/{TEAM}/{kind}")["items"]
    return found


def test_a_pod_is_its_submitters_in_its_accounts_namespace_and_can_do_no_more(cluster: KubernetesCluster) -> None:
    script = (
        "id -u; id -g; grep -E '^(NoNewPrivs|Seccomp|CapEff):' /proc/self/status;"
        "test -e /var/run/secrets/kubernetes.io || echo no credentials; echo mine > mine;"
        f"while ! test -e {cluster.work}/go; do sleep 0.1; done"
    )
    theirs = cluster.work / "theirs"
    theirs.mkdir(mode=0o777)
    theirs.chmod(0o777)
    job = cluster.sbatch("-A", "team", "-o", "who", "--wrap", script, user=OTHER, cwd=theirs)
    cluster.until(lambda: (theirs / "mine").exists(), LONG_S)
    pods, secrets = objects(cluster, "pods"), objects(cluster, "secrets")
    (cluster.work / "go").touch()
    assert cluster.wait(job, LONG_S)["state"] == "COMPLETED", cluster.log_tail()
    person = pwd.getpwnam(OTHER)
    uid, gid, *facts, credentials = (theirs / "who").read_text().splitlines()
    assert (int(uid), int(gid), credentials) == (person.pw_uid, person.pw_gid, "no credentials")
    said = dict(fact.replace("\t", "").split(":") for fact in facts)
    assert said == {"CapEff": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2"}
    assert {(theirs / name).stat().st_uid for name in ("who", "mine")} == {person.pw_uid}
    assert [pod["metadata"]["labels"]["bireme.dev/job"] for pod in pods] == [job]
    data = {key: base64.b64decode(text).decode() for secret in secrets for key, text in secret["data"].items()}
    words = json.dumps(pods)
    assert data["token-0"].rpartition(":")[2] not in words, "secrets are in a Secret only"
    cluster.until(lambda: not objects(cluster, "pods") and not objects(cluster, "secrets"), LONG_S)
