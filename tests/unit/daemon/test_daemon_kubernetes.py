"""The `kubernetes.*` settings as the engine understands them, and what cannot be meant."""

from __future__ import annotations

import pytest

from bireme.core.model.cluster import ClusterConfig
from bireme.daemon.kubernetes import pod_rules
from bireme.daemon.settings import Settings, SettingsError
from bireme.engines.kubernetes.pods import Mount


def mounts(*volumes: str) -> tuple[Mount, ...]:
    return pod_rules(Settings(kubernetes_volumes=volumes), ClusterConfig()).mounts


def test_volumes_of_everybody_of_a_partition_and_of_an_account() -> None:
    claim = {"persistentVolumeClaim": {"claimName": "data", "readOnly": False}}
    export = {"nfs": {"server": "filer", "path": "/export", "readOnly": True}}
    assert mounts("pvc:data:/data", "partition=gpu:nfs:filer:/export:/models:ro", "account=ml:host:/fast:/fast") == (
        Mount("/data", claim),
        Mount("/models", export, read_only=True, partition="gpu"),
        Mount("/fast", {"hostPath": {"path": "/fast"}}, account="ml"),
    )


@pytest.mark.parametrize(
    ("volume", "said"),
    [
        ("disk:data:/data", "none of pvc:CLAIM:/path"),
        ("pvc:data:data", "must end in the path inside the pod"),
        ("user=ada:pvc:data:/data", "neither partition=NAME: nor account=NAME:"),
        ("partition=:pvc:data:/data", "not of the form name=value"),
        ("partition=gpu", "none of pvc:CLAIM:/path"),
    ],
)
def test_a_volume_that_cannot_be_meant_is_refused(volume: str, said: str) -> None:
    with pytest.raises(SettingsError, match=f"kubernetes.volumes: .*{said}"):
        mounts(volume)
