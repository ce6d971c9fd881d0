"""The `kubernetes.*` settings, as the Kubernetes engine understands them.

Called by `engines`. Invariant: a setting that cannot be meant is refused with its name and a right example.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bireme.core.model.cluster import ClusterConfig
from bireme.daemon.settings import Settings, SettingsError
from bireme.engines.kubernetes.pods import Mount, PodRules
from bireme.engines.kubernetes.settings import KubernetesSettings


def engine_settings(settings: Settings) -> KubernetesSettings:
    host, port = _gateway(settings.kubernetes_gateway)
    return KubernetesSettings(
        kubeconfig=settings.kubernetes_config,
        context=settings.kubernetes_context,
        gateway_host=host,
        gateway_port=port,
        http_gateway=_http_gateway(settings.kubernetes_http_gateway),
        start_timeout_s=float(settings.kubernetes_start_timeout_s),
        topology_keys=settings.kubernetes_topology,
        partition_selectors=dict(map(_partition, settings.kubernetes_partitions)) or None,
    )


def pod_rules(settings: Settings, cluster: ClusterConfig) -> PodRules:
    images = [_choice(text) for text in settings.kubernetes_job_images]
    classes = [_choice(text) for text in settings.kubernetes_priority_classes]
    namespaces = (_pair("kubernetes.account_namespaces", text) for text in settings.kubernetes_account_namespaces)
    return PodRules(
        cluster=cluster.name,
        image=settings.kubernetes_image,
        default_image=next((image for partition, image in images if not partition), ""),
        partition_images={partition: image for partition, image in images if partition},
        pull_policy=settings.kubernetes_pull_policy,
        namespace=settings.kubernetes_namespace,
        account_namespaces=dict(namespaces),
        mounts=tuple(_mount(text) for text in settings.kubernetes_volumes),
        priority_class=next((name for qos, name in classes if not qos), ""),
        qos_priority_classes={qos: name for qos, name in classes if qos},
        tolerations=tuple({"key": key, "operator": "Exists"} for key in settings.kubernetes_tolerations),
    )


def _http_gateway(text: str) -> str:
    namespace, slash, name = text.partition("/")
    if text and not (namespace and slash and name):
        raise SettingsError(f"kubernetes.http_gateway: {text!r} is not a namespace/name, such as infra/public")
    return text


def _gateway(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":") if ":" in text else (text, "", "0")
    if not port.isdigit():
        raise SettingsError(f"kubernetes.gateway: {text!r} is not a host or host:port, such as login1:6830")
    return host, int(port)


def _pair(setting: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals or not value:
        raise SettingsError(f"{setting}: {text!r} is not of the form name=value")
    return name, value


def _choice(text: str) -> tuple[str, str]:
    """(partition, QOS or nothing, image or class). These have a `=` nowhere."""
    whose, equals, chosen = text.partition("=")
    return (whose, chosen) if equals else ("", text)


def _partition(text: str) -> tuple[str, dict[str, str]]:
    name, _, labels = text.partition(":")
    if not name:
        raise SettingsError(f"kubernetes.partitions: {text!r} has no name; write gpu:label=value")
    return name, dict(_pair("kubernetes.partitions", label) for label in labels.split(",") if label)


def _mount(text: str) -> Mount:
    """With whose it is, if not everybody's: `partition=NAME:` or `account=NAME:` before the volume."""
    head, _, rest = text.partition(":")
    if "=" not in head:
        return _volume(text)
    whose, name = _pair("kubernetes.volumes", head)
    if whose not in ("partition", "account"):
        raise SettingsError(
            f"kubernetes.volumes: {text!r} begins with neither partition=NAME: nor account=NAME:, nor with a volume"
        )
    return replace(_volume(rest), partition=name) if whose == "partition" else replace(_volume(rest), account=name)


def _volume(text: str) -> Mount:
    words = text.split(":")
    read_only = words[-1] == "ro"
    match words[:-1] if read_only else words:
        case ["pvc", claim, path]:
            source: dict[str, Any] = {"persistentVolumeClaim": {"claimName": claim, "readOnly": read_only}}
        case ["host", folder, path]:
            source = {"hostPath": {"path": folder}}
        case ["nfs", server, export, path]:
            source = {"nfs": {"server": server, "path": export, "readOnly": read_only}}
        case _:
            raise SettingsError(
                f"kubernetes.volumes: {text!r} is none of pvc:CLAIM:/path, host:/folder:/path, nfs:SERVER:/export:/path"
            )
    if not path.startswith("/"):
        raise SettingsError(f"kubernetes.volumes: {text!r} must end in the path inside the pod, such as /data")
    return Mount(path, source, read_only)
