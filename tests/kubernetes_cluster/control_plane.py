"""etcd, kube-apiserver, kube-controller-manager and, when asked, kube-scheduler: real ones, in plain processes.

Its own certificate authority, RBAC on, one kubeconfig per role; `identity` makes more for tests of rights.
Native gangs are switched on (`GenericWorkload`, `GangScheduling`, `scheduling.k8s.io/v1alpha2`), because what
Bireme's scheduler does with them is compared with what kube-scheduler does.
"""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL

from tests.kubernetes_cluster.binaries import program
from tests.kubernetes_cluster.certificates import Authority
from tests.kubernetes_cluster.processes import Keeper, free_ports, run, wait_for

GATES = "GenericWorkload=true,GangScheduling=true"
_SERVICES = "198.19.255.0/24"
_AGGREGATOR = "aggregator"
"""Who the API server is to servers of further APIs (metrics-server): they believe what it says of its users."""
_LIMITS = ("--kube-api-qps=5000", "--kube-api-burst=5000")


@dataclass(frozen=True, slots=True)
class Options:
    scheduler: bool = False
    """kube-scheduler too, for pods that name it (or nobody)."""
    node_grace_s: int = 12
    """How long a node may be silent before it is NotReady. Short: tests wait for it."""
    not_ready_toleration_s: int = 5
    """How long pods stay on a node that is NotReady."""


class ControlPlane:
    """Starts on `address`; the processes belong to `keeper`."""

    def __init__(self, keeper: Keeper, folder: Path, address: str, options: Options) -> None:
        self.keeper = keeper
        self.folder = folder
        self.address = address
        self.options = options
        self._etcd_port, self._peer_port, self.port, self._manager_port, self._scheduler_port = free_ports(5)
        self.authority = Authority(folder / "pki")
        self.server = f"https://{address}:{self.port}"

    def start(self) -> ControlPlane:
        self._start_etcd()
        self.start_api_server()
        self.keeper.start("kube-controller-manager", program("kube-controller-manager"), *self._manager_flags())
        if self.options.scheduler:
            self.start_scheduler()
        return self

    # -- who may do what ---------------------------------------------------------------------------------------------

    @property
    def admin(self) -> Path:
        """A kubeconfig that may do everything."""
        return self.identity("admin", "system:masters")

    def identity(self, user: str, *groups: str) -> Path:
        """A kubeconfig for this user, who may only do what RBAC gives the name or the groups."""
        return self.authority.kubeconfig(self.server, user, groups)

    def kubectl(self, *arguments: str, stdin: str | None = None, kubeconfig: Path | None = None) -> str:
        """Output of the real kubectl; raises with its words when it fails."""
        command = (program("kubectl"), f"--kubeconfig={kubeconfig or self.admin}", *arguments)
        return run(*command, stdin=None if stdin is None else stdin.encode())

    # -- processes ---------------------------------------------------------------------------------------------------

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        self.keeper.start(
            "etcd",
            program("etcd"),
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--quota-backend-bytes=4294967296",
            "--log-level=warn",
        )

    def start_api_server(self) -> None:
        """Also again, after `stop_api_server`: the port and the data stay."""
        self.keeper.start("kube-apiserver", program("kube-apiserver"), *self._server_flags())
        wait_for(self._is_ready, f"the API server (see {self.keeper.log('kube-apiserver')})")

    def stop_api_server(self) -> None:
        self.keeper.end("kube-apiserver", SIGKILL)

    def start_scheduler(self) -> None:
        config = self.identity("system:kube-scheduler")
        self.keeper.start(
            "kube-scheduler",
            program("kube-scheduler"),
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._scheduler_port}",
            f"--feature-gates={GATES}",
            "--leader-elect=false",
            *_LIMITS,
        )

    def stop_scheduler(self) -> None:
        self.keeper.end("kube-scheduler")

    def _server_flags(self) -> list[str]:
        serving = self.authority.issue("kube-apiserver", addresses=tuple({self.address, "127.0.0.1"}))
        to_kubelets = self.authority.issue("kube-apiserver-kubelet-client", ("system:masters",))
        to_servers = self.authority.issue(_AGGREGATOR)
        signing = self.authority.signing_key()
        return [
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--bind-address={self.address}",
            f"--secure-port={self.port}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={self.authority.pair.certificate}",
            f"--kubelet-client-certificate={to_kubelets.certificate}",
            f"--kubelet-client-key={to_kubelets.key}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--proxy-client-cert-file={to_servers.certificate}",
            f"--proxy-client-key-file={to_servers.key}",
            f"--requestheader-client-ca-file={self.authority.pair.certificate}",
            f"--requestheader-allowed-names={_AGGREGATOR}",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--enable-aggregator-routing=true",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={signing}",
            f"--service-account-signing-key-file={signing}",
            f"--service-cluster-ip-range={_SERVICES}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--endpoint-reconciler-type=none",
            "--allow-privileged=true",
            f"--default-not-ready-toleration-seconds={self.options.not_ready_toleration_s}",
            f"--default-unreachable-toleration-seconds={self.options.not_ready_toleration_s}",
            "--max-requests-inflight=2000",
            "--max-mutating-requests-inflight=1000",
            f"--feature-gates={GATES}",
            "--runtime-config=scheduling.k8s.io/v1alpha2=true",
            "--profiling=false",
        ]

    def _manager_flags(self) -> list[str]:
        config = self.identity("system:kube-controller-manager")
        return [
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._manager_port}",
            f"--service-account-private-key-file={self.authority.signing_key()}",
            f"--root-ca-file={self.authority.pair.certificate}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            f"--node-monitor-grace-period={self.options.node_grace_s}s",
            "--node-monitor-period=1s",
            "--horizontal-pod-autoscaler-sync-period=1s",
            "--horizontal-pod-autoscaler-initial-readiness-delay=1s",
            "--horizontal-pod-autoscaler-cpu-initialization-period=1s",
            f"--feature-gates={GATES}",
            "--profiling=false",
            *_LIMITS,
        ]

    def _is_ready(self) -> bool:
        if self.keeper.exit_code("kube-apiserver") is not None:
            raise RuntimeError(f"the API server ended: {last_lines(self.keeper.log('kube-apiserver'))}")
        trust = ssl.create_default_context(cafile=str(self.authority.pair.certificate))
        try:
            with urllib.request.urlopen(f"{self.server}/readyz", context=trust, timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def last_lines(log: Path, count: int = 5) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-count:])
