"""Bireme's own way to the Kubernetes API against a real API server: requests, refusals, watches that are cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes_cluster import fake_nodes
from tests.kubernetes_cluster.cluster import Kubernetes, missing

from bireme.engines.kubernetes import lease as lease_module
from bireme.engines.kubernetes.apiserver.api import ApiProblem, KubernetesApi, read_kubeconfig
from bireme.engines.kubernetes.apiserver.mirror import Mirror
from bireme.engines.kubernetes.lease import Lease

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
NODES = "/api/v1/nodes"
OURS = "nvidia.com/gpu.product=NVIDIA-H200"


@pytest.fixture(scope="module", autouse=True)
def _leave_no_nodes(kubernetes: Kubernetes) -> Iterator[None]:
    yield
    kubernetes.kubectl("delete", "--raw", f"{NODES}?labelSelector={OURS}")


def with_api(kubeconfig: Path, steps: Callable[[KubernetesApi], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        api = KubernetesApi(read_kubeconfig(str(kubeconfig), ""))
        try:
            await asyncio.wait_for(steps(api), 60)
        finally:
            await api.close()

    asyncio.run(main())


async def until(good: Callable[[], bool]) -> None:
    while not good():
        await asyncio.sleep(0.01)


def test_many_requests_share_a_few_connections(kubernetes: Kubernetes) -> None:
    async def steps(api: KubernetesApi) -> None:
        await asyncio.gather(*(api.ask("POST", NODES, fake_nodes.node(index, 8)) for index in range(100)))
        found = await asyncio.gather(*(api.ask("GET", f"{NODES}/fake-{index:05d}") for index in range(100)))
        assert [one["metadata"]["name"] for one in found] == [f"fake-{index:05d}" for index in range(100)]
        items, _ = await api.list(NODES, {"labelSelector": OURS})
        assert len(items) == 100

    with_api(kubernetes.kubeconfig, steps)


def test_a_refusal_keeps_the_api_servers_words(kubernetes: Kubernetes) -> None:
    async def steps(api: KubernetesApi) -> None:
        with pytest.raises(ApiProblem, match='User "nobody" cannot list resource "nodes"') as refused:
            await api.ask("GET", NODES)
        assert (refused.value.status, refused.value.reason) == (403, "Forbidden")
        with pytest.raises(ApiProblem, match="cannot watch"):
            async for _ in api.watch(NODES, "1"):
                pass

    with_api(kubernetes.plane.identity("nobody"), steps)


def test_a_mirror_goes_on_after_the_api_server_was_away(kubernetes: Kubernetes) -> None:
    async def steps(api: KubernetesApi) -> None:
        mirror = Mirror(api, NODES, lambda _kind, _item: None)
        running_mirror = asyncio.create_task(mirror.run())
        await mirror.complete.wait()
        await asyncio.to_thread(kubernetes.plane.stop_api_server)
        await until(lambda: bool(mirror.problem))
        with pytest.raises(ApiProblem, match="does not answer") as away:
            await api.ask("GET", NODES)
        assert away.value.passing
        await asyncio.to_thread(kubernetes.plane.start_api_server)
        await api.ask("POST", NODES, fake_nodes.node(600, 8))
        await until(lambda: "fake-00600" in mirror.objects)
        assert not mirror.problem
        running_mirror.cancel()

    with_api(kubernetes.kubeconfig, steps)


def test_a_version_that_is_too_old_is_listed_anew(kubernetes: Kubernetes) -> None:
    """The API server answers 410; what went meanwhile is told as gone, what stayed is not told as new."""
    told: list[tuple[str, str]] = []

    async def steps(api: KubernetesApi) -> None:
        await api.ask("POST", NODES, fake_nodes.node(700, 8))
        mirror = Mirror(api, NODES, lambda kind, item: told.append((kind, item["metadata"]["name"])))
        first = asyncio.create_task(mirror.run())
        await mirror.complete.wait()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await api.ask("DELETE", f"{NODES}/fake-00700")
        told.clear()
        mirror._version = "1"
        again = asyncio.create_task(mirror.run())
        await until(lambda: ("DELETED", "fake-00700") in told)
        assert not [name for kind, name in told if kind == "ADDED"]
        again.cancel()

    with_api(kubernetes.kubeconfig, steps)


@pytest.mark.parametrize("text", [None, "apiVersion: v1\nkind: Config\nclusters: []\nusers: []\ncontexts: []\n"])
def test_a_kubeconfig_that_cannot_be_used_is_said_so(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ApiProblem, match="no usable kubeconfig"):
        read_kubeconfig(str(path), "")


def test_an_api_server_of_another_authority_is_not_trusted(kubernetes: Kubernetes, tmp_path: Path) -> None:
    from_elsewhere = tmp_path / "config"
    text = kubernetes.kubeconfig.read_text()
    other = kubernetes.plane.authority.issue("admin", ("system:masters",)).certificate
    from_elsewhere.write_text(text.replace(str(kubernetes.plane.authority.pair.certificate), str(other)))

    async def steps(api: KubernetesApi) -> None:
        with pytest.raises(ApiProblem, match="certificate verify failed"):
            await api.ask("GET", NODES)

    with_api(from_elsewhere, steps)


def test_certificates_that_are_not_there_are_said_so(kubernetes: Kubernetes, tmp_path: Path) -> None:
    without = tmp_path / "config"
    text = kubernetes.kubeconfig.read_text()
    without.write_text(text.replace(str(kubernetes.plane.authority.pair.certificate), str(tmp_path / "none.crt")))

    async def steps() -> None:
        with pytest.raises(ApiProblem, match="certificates cannot be used"):
            KubernetesApi(read_kubeconfig(str(without), ""))

    asyncio.run(steps())


def test_a_program_that_prints_credentials_is_asked_again_when_they_expire(
    kubernetes: Kubernetes, tmp_path: Path
) -> None:
    """`exec` in the kubeconfig: the first token is refused, the second is good."""
    kubernetes.kubectl("create", "serviceaccount", "robot")
    kubernetes.kubectl("create", "clusterrolebinding", "robot", "--clusterrole=view", "--serviceaccount=default:robot")
    token = kubernetes.kubectl("create", "token", "robot").strip()
    program, counter = tmp_path / "login", tmp_path / "asked"
    program.write_text(
        "#!/bin/sh\n"
        f"echo x >> {counter}\n"
        f"if [ $(wc -l < {counter}) = 1 ]; then token=expired; else token={token}; fi\n"
        'echo "{\\"status\\": {\\"token\\": \\"$token\\"}}"\n'
    )
    program.chmod(0o700)
    authority = kubernetes.plane.authority.pair.certificate
    config = tmp_path / "config"
    config.write_text(f"""\
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "{kubernetes.plane.server}", certificate-authority: {authority}}}}}]
users: [{{name: u, user: {{exec: {{apiVersion: client.authentication.k8s.io/v1, command: {program}}}}}}}]
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
current-context: x
""")

    async def steps(api: KubernetesApi) -> None:
        assert (await api.ask("GET", "/api/v1/namespaces/default/pods"))["kind"] == "PodList"

    with_api(config, steps)
    assert len(counter.read_text().split()) == 2


def test_a_lease_that_ran_out_is_taken_again_before_anything_is_placed_or_somebody_has_it(
    kubernetes: Kubernetes,
) -> None:
    """A daemon that slept: while it did, either nobody came, or another one did."""

    async def steps(api: KubernetesApi) -> None:
        first, second = (Lease(api, "default", "tested", name) for name in ("first", "second"))
        await first.take()
        await first.confirm()
        first._until = 0.0  # it slept for longer than the Lease lasts
        assert not first.held
        await first.confirm()
        assert first.held
        path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/bireme-tested"
        lease = await api.ask("GET", path)
        lease["spec"]["renewTime"] = "2020-01-01T00:00:00.000000Z"
        await api.ask("PUT", path, lease)
        await second.take()
        first._until = 0.0
        with pytest.raises(ApiProblem, match="second holds the Lease default/bireme-tested"):
            await first.confirm()
        assert not first.held
        await second.release()
        await first.confirm()
        assert first.held
        await api.ask("DELETE", path)

    with_api(kubernetes.kubeconfig, steps)


def test_a_daemon_is_not_in_its_own_way_when_its_lease_ran_out(kubernetes: Kubernetes) -> None:
    """Several launches ask for it and it is renewed, all at once: nobody is told of a conflict."""

    async def steps(api: KubernetesApi) -> None:
        lease = Lease(api, "default", "crowded", "first")
        await lease.take()
        for _ in range(5):
            lease._until = 0.0  # it slept for longer than the Lease lasts
            await asyncio.gather(lease.take(), *(lease.confirm() for _ in range(8)), lease.take())
            assert lease.held
        await api.ask("DELETE", "/apis/coordination.k8s.io/v1/namespaces/default/leases/bireme-crowded")

    with_api(kubernetes.kubeconfig, steps)


def test_a_lease_carries_notes_until_the_next_daemon_reads_them(
    kubernetes: Kubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "_RENEW_S", 1e6)  # only news make it write

    async def steps(api: KubernetesApi) -> None:
        notes = {"bireme.dev/ends": "one"}
        first = Lease(api, "default", "noted", "first", lambda: notes)
        assert await first.note("bireme.dev/ends") == ""
        await first.take()
        keeping = asyncio.create_task(first.keep())
        notes["bireme.dev/ends"] = "two"
        first.write_soon()
        async with asyncio.timeout(60):
            while await first.note("bireme.dev/ends") != "two":
                await asyncio.sleep(0.05)
        keeping.cancel()
        notes["bireme.dev/ends"] = "three"
        await first.release()
        assert await Lease(api, "default", "noted", "second").note("bireme.dev/ends") == "three"
        await api.ask("DELETE", "/apis/coordination.k8s.io/v1/namespaces/default/leases/bireme-noted")

    with_api(kubernetes.kubeconfig, steps)
