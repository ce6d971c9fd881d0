"""The Kubernetes engine: starts of jobs become pods, bound where the planner said, with an agent in each.

What agents are told and what their words mean is the crew's (`engines/crew`); here is where agents come from. A start
is a Secret and one pod per node (`pods`), made and bound together, and an agent calls from each pod (`gateway`). What
the cluster looks like is mirrored (`mirror`) and told as observations. The API server is only asked to change things.

A start is over for Kubernetes when its pods are: a node counts as clear when its pod has ended or is gone, since only
then does its kubelet have the GPUs back.

Invariant: every pod of a start is bound or none stays; whatever is made names its job and generation, so that a daemon
that died between two requests finds it, and finishes or removes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections import OrderedDict
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from bireme.agent.messages.orders import Launch, Order
from bireme.agent.messages.told import BatchEnded, Cleared, Launched, Refused, StepBegan
from bireme.core.model import commands as c
from bireme.core.model import observations as o
from bireme.core.model.cluster import ClusterConfig
from bireme.core.model.jobs import JobSpec, Owner
from bireme.core.model.resources import ExitStatus
from bireme.core.model.steps import StepSpec
from bireme.engines.crew.engine import CrewEngine, Key
from bireme.engines.crew.link import AgentLink
from bireme.engines.crew.payloads import PayloadWriter
from bireme.engines.kubernetes import nodes, pods
from bireme.engines.kubernetes.apiserver.api import ApiProblem, KubernetesApi, Object, read_kubeconfig
from bireme.engines.kubernetes.apiserver.insistence import Insistence, path_of
from bireme.engines.kubernetes.apiserver.mirror import Mirror
from bireme.engines.kubernetes.asked_mounts import refusal
from bireme.engines.kubernetes.checks import check_same_cluster, check_version
from bireme.engines.kubernetes.crossing.brought import BroughtInput
from bireme.engines.kubernetes.crossing.gateway import Berth, Gateway
from bireme.engines.kubernetes.crossing.harbour import open_harbour
from bireme.engines.kubernetes.crossing.returned import ReturnedOutput
from bireme.engines.kubernetes.crossing.scripts import with_scripts
from bireme.engines.kubernetes.ends import ANNOTATION, Ends
from bireme.engines.kubernetes.guests.scheduler import Guests
from bireme.engines.kubernetes.landscape import Landscape, Surroundings
from bireme.engines.kubernetes.lease import Lease
from bireme.engines.kubernetes.marking import NodeMarks
from bireme.engines.kubernetes.pod_events import complaint
from bireme.engines.kubernetes.priority_classes import settle_priority_classes
from bireme.engines.kubernetes.publishing import Publishing
from bireme.engines.kubernetes.settings import KubernetesSettings
from bireme.ports import Admit, Blobs, Capabilities, EngineUnavailable, JobQueue, PublishedService, Report
from bireme.slurm.variables.cluster import cluster_facts

log = logging.getLogger("bireme.engines.kubernetes")

_FIRST_LIST_S = 60.0
_LEASE_AGAIN_S = 10.0
_IDS_AT_MOST = 200_000
_CALL_S = 30.0
"""An agent that runs calls within this time."""
_ASKED_AT_MOST = 3
"""Pods of a start that is late whose events are asked for: what one lacks the others lack too."""
_SWEEP_AFTER_S = 5.0
"""The runtime says first what it still wants; what is then nobody's is removed."""


class _PodGone(Cleared, tag="cleared"):
    """Said here, not by an agent: only now is its node clear."""


class KubernetesEngine(CrewEngine):
    name = "kubernetes"

    def __init__(
        self, home: Path, config: ClusterConfig, blobs: Blobs, settings: KubernetesSettings, rules: pods.PodRules
    ) -> None:
        """`config`: settings and partitions of slurm.conf, if there is one; the nodes are the cluster's own.

        `rules`: what the settings say of pods; the gateway's address is filled in when it listens.
        """
        super().__init__(config, PayloadWriter(Path(pods.HOME), config, blobs, containers=None))
        self._home = home
        self._settings = settings
        self._rules = rules
        self._base = config
        self._api: KubernetesApi | None = None
        self._gateway: Gateway | None = None
        self._returned: ReturnedOutput | None = None
        self._brought: BroughtInput | None = None
        self.admit: Admit = _nobody
        """Serves the API to commands inside pods; the daemon sets it before `start`."""
        self._links: dict[Berth, AgentLink] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._lease: Lease | None = None
        self._pods: Mirror | None = None
        self._pod_of: dict[Berth, Object] = {}
        """The newest word on each pod of ours."""
        self._berth_of_id: OrderedDict[str, Berth] = OrderedDict()
        """By `pods.ids_of`: pods of ours, also those that are gone: what was measured of them may come late."""
        self._making: set[Key] = set()
        """Starts whose pods are being made: until that is over nobody can say that one of them is gone."""
        self._leaving: set[Berth] = set()
        """Pods that are being ended on purpose: their end is no news but the answer."""
        self._gone: set[Berth] = set()
        """Pods whose end was told; what is still said of them (its deletion) is no news either."""
        self._epilog_failed: set[Berth] = set()
        self._hosts_sent: dict[Berth, Mapping[str, str]] = {}
        self._hosts_told: dict[Berth, Mapping[str, str]] = {}
        """How the job's nodes are reached, as each pod was told in an order that it has confirmed."""
        self._mounts_of: dict[Key, tuple[pods.Mount, ...]] = {}
        """The volumes of starts for which an order was given."""
        self._sent_away: dict[Key, str] = {}
        """Starts of which somebody else ends a pod, with its grace: what their scripts then do is not their own end."""
        self.queue: JobQueue | None = None
        """Where others' pods wait their turn; the daemon sets it before `start`."""
        self._guests: Guests | None = None
        self._gpus_a_node = 0
        """The most that a node has."""
        self._landscape: Landscape | None = None
        self._ends: Ends | None = None
        """How the newest jobs ended, as far as the cluster is told."""
        self._publishing: Publishing | None = None
        self._marks: NodeMarks | None = None

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            past=self,
            commands=self,
            guests=self,
            pods=self,
            containers=self,
            publisher=self,
            environments=self,
            fencing=self,
        )

    async def keep_out(self, nodes: Mapping[str, str]) -> None:
        """Others' pods are kept off these nodes too (`ports.MarksNodes`)."""
        if self._marks is not None:
            await self._marks.keep_out(nodes)

    # --- life ----------------------------------------------------------------------------------------------

    async def start(self, report: Report) -> None:
        self._report = report
        try:
            self._api = KubernetesApi(read_kubeconfig(self._settings.kubeconfig, self._settings.context))
            await check_version(self._api)
            check_same_cluster(self._api, self._home / "kubernetes" / "cluster")
            self._rules, self.problem = await settle_priority_classes(self._api, self._rules)
            await self._take_lease(self._api)
        except ApiProblem as problem:
            if self._api is not None:
                await self._api.close()
            needs = "; deploy/kubernetes/rights.yaml has the rights that the daemon needs" * (problem.status == 403)
            raise EngineUnavailable(f"{problem}{needs}") from problem
        assert self._lease is not None
        self._work(self._lease.keep())
        await self._open_harbour(self._api)
        self._landscape = landscape = self._survey(self._api)
        self._marks = NodeMarks(self._api, lambda: landscape.mirror.objects, time.time)
        self._pods = Mirror(self._api, "/api/v1/pods", self._pod_changed)
        self._welcome_guests(self._api, self._landscape)
        mirrors = (self._landscape.mirror, self._pods, *(self._guests.catalogue.mirrors if self._guests else ()))
        for mirror in mirrors:
            self._work(mirror.run())
        await self._first_lists(*mirrors)
        for berth, pod in self._pod_of.items():
            if not pods.is_over(pod):  # of an earlier daemon: its agent calls again, and says what nobody acknowledged
                self._touch((berth.job_id, berth.generation), (berth.node,))
                self.link(berth.node, (berth.job_id, berth.generation))
        assert self._gateway is not None
        self._gateway.settle()
        if self.recalls():
            self._tell_ends()
        self._publishing = Publishing(self._api, self._rules, self._settings.http_gateway)
        self._work(self._publishing.run())
        self._landscape.open()
        if self._guests is not None:
            for settled in self._guests.check():  # a job holds what they have: they are nobody else's
                self._pod_changed("MODIFIED", dict(settled))
        self._work(self._sweep())

    async def _take_lease(self, api: KubernetesApi) -> None:
        self._ends = ends = Ends(self._home / "kubernetes" / "name")
        self._lease = Lease(
            api, self._rules.namespace, self._rules.cluster, self._identity(), lambda: {ANNOTATION: ends.text}
        )
        ends.read(await self._lease.note(ANNOTATION))
        await self._lease.take()

    # --- services ------------------------------------------------------------------------------------------

    def publish(self, services: Sequence[PublishedService]) -> None:
        assert self._publishing is not None, "the daemon publishes when the engine has started"
        self._publishing.publish(services)

    def replica_address(self, node: str, key: Key, found: str) -> str:
        """A replica's address is its pod's own: what the agent found is an address inside it."""
        pod = self._pod_of.get(Berth(*key, node)) or {}
        return str((pod.get("status") or {}).get("podIP") or "")

    # --- after a loss --------------------------------------------------------------------------------------

    def hear_again(self) -> None:
        """Has everything told again, but not at once: the runtime is in the middle of its turn."""
        self.later(0.0, self._say_all_again)

    def _say_all_again(self) -> None:
        """How jobs ended before that the nodes are there: when all have answered, jobs may start."""
        assert self._landscape is not None
        self._tell_ends()
        self._landscape.tell_again()

    def _tell_ends(self) -> None:
        assert self._ends is not None
        if ends := self._ends.told_again():
            self._report(ends)

    def _note_end(self, node: str, end: o.BatchFinished) -> None:
        assert self._ends is not None
        assert self._lease is not None
        self._ends.note(node, end)
        self._lease.write_soon()

    def _ended_on(self, node: str) -> tuple[Key, ...]:
        return self._ends.on(node) if self._ends is not None else ()

    # -------------------------------------------------------------------------------------------------------

    def _survey(self, api: KubernetesApi) -> Landscape:
        return Landscape(
            api,
            self._base,
            Surroundings(self._seen, self._take_config, self._held_on, self._ended_on, self.now, self.later),
            tolerated=frozenset(str(each["key"]) for each in self._rules.tolerations if "key" in each),
            topology_keys=self._settings.topology_keys,
            partition_selectors=self._settings.partition_selectors,
        )

    def _seen(self, seen: Sequence[o.Observation]) -> None:
        """What has changed about the nodes: what could not run before may now, and what was to end may never do so."""
        if seen:
            self._report(seen)
        for berth in [berth for berth in self._leaving if self._is_lost(berth.node)]:
            self._delete_pod(berth)
        if self._guests is not None:
            self._guests.nodes_changed()

    def _is_lost(self, node: str) -> bool:
        assert self._landscape is not None
        return self._landscape.is_lost(node)

    def _welcome_guests(self, api: KubernetesApi, landscape: Landscape) -> None:
        if self.queue is None:
            return
        accounts = {namespace: account for account, namespace in self._rules.account_namespaces.items()}
        self._guests = Guests(
            api,
            self._insist,
            self.queue,
            lambda seen: self._report(seen),
            self.now,
            self._work,
            accounts,
            landscape.learn_labels,
            landscape.ground,
            lambda: self._gpus_a_node,
            landscape.pods_most,
            landscape.takes,
        )
        self._guests.resume()

    def why_outside(self, namespace: str, pod: str) -> str:
        return self._guests.why_outside(namespace, pod) if self._guests is not None else ""

    def start_of_pod(self, uid: str) -> tuple[int, int, str] | None:
        berth = self._berth_of_id.get(uid)
        return None if berth is None else (berth.job_id, berth.generation, berth.node)

    def why_no_container(self, spec: JobSpec | StepSpec) -> str:
        if spec.container_bundle:
            return (
                f"--container={spec.container_bundle[:200]} is the folder of an OCI bundle, which pods cannot run: "
                "name an image that the cluster can pull, as --container-image=REGISTRY/NAME:TAG"
            )
        return refusal(spec, self._rules.mounts_anywhere(spec)) if isinstance(spec, JobSpec) else ""

    def _remember_ids(self, berth: Berth, ids: Sequence[str]) -> None:
        for each in ids:
            self._berth_of_id[each] = berth
            self._berth_of_id.move_to_end(each)
        while len(self._berth_of_id) > _IDS_AT_MOST:
            self._berth_of_id.popitem(last=False)

    async def _first_lists(self, *mirrors: Mirror) -> None:
        try:
            async with asyncio.timeout(_FIRST_LIST_S):
                await asyncio.gather(*(mirror.complete.wait() for mirror in mirrors))
        except TimeoutError:
            problem = next((mirror.problem for mirror in mirrors if mirror.problem), "no answer in time")
            raise EngineUnavailable(f"the nodes and pods of the cluster cannot be listed: {problem}") from None

    def _identity(self) -> str:
        return f"{socket.gethostname()}:{self._home}"

    async def _open_harbour(self, api: KubernetesApi) -> None:
        folder = self._home / "kubernetes"
        self._returned = ReturnedOutput(folder / "output", pods.SPOOL)
        self._brought = BroughtInput(folder / "input", pods.INBOX)
        deliver, provide = self._returned.delivery, self._brought.offer
        harbour = await open_harbour(self._home, self._settings, api.server, self._admitted, deliver, provide)
        self._gateway = harbour.gateway
        self._rules = replace(
            self._rules, gateway_host=harbour.host, gateway_port=harbour.port, authority=harbour.authority
        )

    def _admitted(self, sock: socket.socket, owner: Owner, job_id: int) -> None:
        self.admit(sock, owner, job_id)

    async def stop(self) -> None:
        for deadline in self._deadlines.values():
            deadline.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(link.close() for link in self._links.values()))
        if self._lease is not None:
            await self._lease.release()
        if self._gateway is not None:
            await self._gateway.stop()
        if self._api is not None:
            await self._api.close()

    async def end_jobs(self, grace_s: float) -> None:
        """Deletes the starts of all jobs; their pods end with them, within the grace that they were made with."""
        starts = {(berth.job_id, berth.generation) for berth in self._pod_of}
        await asyncio.gather(*(self._delete_start(key) for key in starts))

    def reconfigure(self, config: ClusterConfig) -> None:
        if config.nodes and config.source == self._base.source:
            self._take_config(config)

    def _take_config(self, config: ClusterConfig) -> None:
        self._config = config
        self._gpus_a_node = max((node.gres_count("gpu") for node in config.nodes), default=0)
        self._payloads.reconfigure(config, cluster_facts(config, autodetect=self._autodetect))
        self._payloads.confined_devices = frozenset(node.name for node in config.nodes)

    def _autodetect(self, node: str) -> str:
        return nodes.autodetect(self._landscape.offered(node)) if self._landscape is not None else ""

    def _work(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._worked)

    def _worked(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("work for the cluster failed", exc_info=task.exception())

    # --- agents --------------------------------------------------------------------------------------------

    def link(self, node: str, key: Key) -> AgentLink:
        berth = Berth(*key, node)
        link = self._links.get(berth)
        if link is None:
            assert self._gateway is not None, "links are asked for after start"
            gateway = self._gateway
            pod = self._pod_of.get(berth)
            link = self._links[berth] = AgentLink(
                node,
                gateway.address(berth),
                start_agent=lambda _name: gateway.attached(berth),
                on_welcome=lambda _node, _message: None,
                on_events=self._heard,
                on_silent=lambda _node, _reason: None,
            )
            if pod is not None:
                gateway.expect(berth, pods.owner_of(pod), pods.crew_of_pod(pod))
            link.open()
        return link

    def outside_address(self, node: str, key: Key) -> str:
        assert self._gateway is not None, "links are asked for after start"
        self.link(node, key)
        return self._gateway.crossing_address(Berth(*key, node))

    def inside_address(self, node: str, key: Key) -> str:
        """Of the pod's own agent it is there, and leads to it; the others are asked for at the crossing beside it."""
        return f"unix:{pods.HOME}/nodes/{Berth(*key, node).text}.sock"

    def send(self, commands: Sequence[c.Command]) -> None:
        ours: list[c.Command] = []
        for command in commands:
            if self._guests is not None and self._guests.takes(command):
                self._tell_guests(self._guests, command)
                continue
            ours.append(command)
            if isinstance(command, c.LaunchJob | c.LaunchStep):
                key = (command.job.id, command.allocation.generation)
                self._mounts_of[key] = self._rules.mounts_of(command.job, command.allocation)
        super().send(ours)

    def _tell_guests(self, guests: Guests, command: c.Command) -> None:
        assert self._lease is not None
        if isinstance(command, c.LaunchJob) and not self._lease.held:
            self._work(self._tell_guests_later(self._lease, guests, command))
        else:
            guests.obey(command)

    async def _tell_guests_later(self, lease: Lease, guests: Guests, command: c.Command) -> None:
        """Their pods are bound when the Lease is ours again; if it never is, whoever has it binds them."""
        while not lease.lost_to:
            try:
                await lease.confirm()
            except ApiProblem as problem:
                log.warning("pods of others are not placed: %s", problem)
                await asyncio.sleep(_LEASE_AGAIN_S)
            else:
                guests.obey(command)
                return

    @property
    def _insist(self) -> Insistence:
        assert self._api is not None
        return Insistence(self._api, self._rules.cluster)

    def acknowledge(self, job_id: int, generation: int) -> None:
        key = (job_id, generation)
        if self._guests is not None and self._guests.acknowledge(job_id, generation):
            return
        known = self._nodes_of.get(key, set()) | {b.node for b in self._links if (b.job_id, b.generation) == key}
        super().acknowledge(job_id, generation)
        self._sent_away.pop(key, None)
        self._mounts_of.pop(key, None)
        assert self._returned is not None
        assert self._brought is not None
        self._returned.forget(*key)
        self._brought.forget(*key)
        for node in known:
            self._let_go(Berth(*key, node))
        self._work(self._delete_start(key))

    def _let_go(self, berth: Berth) -> None:
        assert self._gateway is not None
        self._gateway.dismiss(berth)
        self._leaving.discard(berth)
        self._gone.discard(berth)
        self._hosts_sent.pop(berth, None)
        self._hosts_told.pop(berth, None)
        link = self._links.pop(berth, None)
        if link is not None:
            self._work(link.close())

    # --- starting ------------------------------------------------------------------------------------------

    def _launch_job(self, command: c.LaunchJob) -> None:
        assert self._gateway is not None
        job, allocation = command.job, command.allocation
        for node in allocation.node_names:
            self._gateway.expect(Berth(job.id, allocation.generation, node), job.spec.owner, pods.crew_of(job))
        super()._launch_job(command)
        key = (job.id, allocation.generation)
        if key not in self._making:
            self._making.add(key)
            self._work(self._make_pods(command))

    def _launch_patience_s(self) -> float:
        return self._settings.start_timeout_s + super()._launch_patience_s()

    def _order(self, node: str, key: tuple[str, tuple[int, ...]], order: Order) -> None:
        """What runs a program of the job also says how its nodes are reached: all of its pods have called by then.

        Its files that lie on no volume come back here, or are brought from here.
        """
        order = with_scripts(order, self._config.settings)
        if isinstance(order, Launch):
            assert self._gateway is not None
            assert self._returned is not None
            assert self._brought is not None
            berth = Berth(key[1][0], key[1][1], node)
            owner = self._gateway.owner(berth)
            mounts = self._mounts_of[berth.job_id, berth.generation]
            kept = [mount.path for mount in mounts if not mount.read_only]
            order = self._returned.divert(owner, order, kept)
            order = self._brought.divert(owner, order, [mount.path for mount in mounts])
            hosts = self._gateway.hosts(berth)
            if self._hosts_told.get(berth) is not hosts:  # of a large job they are the largest part of an order
                self._hosts_sent[berth] = hosts
                order = msgspec.structs.replace(order, hosts=hosts)
        super()._order(node, key, order)

    def _on_launched(self, node: str, key: Key, event: Launched, seen: list[o.Observation]) -> None:
        self._hosts_came(Berth(*key, node))
        super()._on_launched(node, key, event, seen)

    def _on_step_began(self, node: str, key: Key, event: StepBegan, seen: list[o.Observation]) -> None:
        self._hosts_came(Berth(*key, node))
        super()._on_step_began(node, key, event, seen)

    def _hosts_came(self, berth: Berth) -> None:
        if berth in self._hosts_sent:
            self._hosts_told[berth] = self._hosts_sent.pop(berth)

    async def _make_pods(self, command: c.LaunchJob) -> None:
        """All of them, then all bindings. What is already there from an earlier try counts as made."""
        job, allocation = command.job, command.allocation
        key = (job.id, allocation.generation)
        assert self._lease is not None
        try:
            await self._lease.confirm()
            owner_uid = await self._make_secret(key, command)
            made = await _all(
                self._make_pod(key, self._pod(command, rank, owner_uid)) for rank in range(len(allocation.shares))
            )
            await self._lease.confirm()
            if key in self._gangs:
                await _all(
                    self._insist.bind(pod, share.node, lambda: key in self._gangs)
                    for pod, share in zip(made, allocation.shares, strict=True)
                )
        except ApiProblem as problem:
            gang = self._gangs.get(key)
            if gang is not None:
                gang.passing = problem.over_quota or problem.passing
            self._could_not_start(key, str(problem))
        finally:
            self._making.discard(key)
        for berth in (Berth(*key, node) for node in allocation.node_names):
            if berth in self._leaving:  # it was ended meanwhile: what was made is there only now
                self._delete_pod(berth)

    async def _make_secret(self, key: Key, command: c.LaunchJob) -> str:
        assert self._gateway is not None
        job, allocation = command.job, command.allocation
        tokens = {
            node: self._gateway.token(Berth(job.id, allocation.generation, node)) for node in allocation.node_names
        }
        sample_s = float(self._config.settings.account_gather_frequency_s)
        body = pods.secret(self._rules, job, allocation, tokens, sample_s)
        path = f"/api/v1/namespaces/{body['metadata']['namespace']}/secrets"
        made = await self._insist.create(path, body, lambda: key in self._gangs)
        return str(made["metadata"]["uid"])

    def _pod(self, command: c.LaunchJob, rank: int, owner_uid: str) -> Object:
        assert self._landscape is not None
        job, allocation = command.job, command.allocation
        offered = self._landscape.offered(allocation.shares[rank].node)
        kill_wait_s = self._config.settings.kill_wait_s
        return pods.pod(self._rules, job, allocation, rank, owner_uid, kill_wait_s, offered)

    async def _make_pod(self, key: Key, body: Object) -> Object:
        path = f"/api/v1/namespaces/{body['metadata']['namespace']}/pods"
        made = await self._insist.create(path, body, lambda: key in self._gangs)
        berth = pods.berth_of(made)
        assert berth is not None, "it was made with a berth"
        self._pod_of.setdefault(berth, made)
        return made

    def _could_not_start(self, key: Key, why: str, node: str = "") -> None:
        """As if an agent had refused: the gang is taken back, and the job told why."""
        gang = self._gangs.get(key)
        if gang is None:
            return
        seen: list[o.Observation] = []
        refuser = node or gang.nodes[0]
        if refuser in gang.to_clear or not gang.problem:
            self._on_refused(refuser, key, Refused(*key, why, at=self.now()), seen)
            self._delete_pod(Berth(*key, refuser))
        if seen:
            self._report(seen)

    def _out_of_time(self, key: Key) -> None:
        """A pod that did not start may have a reason that only its events tell."""
        gang = self._gangs.get(key)
        if gang is None or gang.problem:
            super()._out_of_time(key)
        else:
            self._work(self._give_up_starting(key, sorted(gang.unprepared)))

    async def _give_up_starting(self, key: Key, late: Sequence[str]) -> None:
        assert self._api is not None
        for node in late[:_ASKED_AT_MOST]:
            pod = self._pod_of.get(Berth(*key, node))
            why = await complaint(self._api, pod) if pod is not None else ""
            gang = self._gangs.get(key)
            if gang is None or gang.problem:
                return  # it was refused, or ended, meanwhile
            if why and node in gang.unprepared:
                self._could_not_start(key, why, node)
                return
        super()._out_of_time(key)

    # --- ending --------------------------------------------------------------------------------------------

    def _terminate_on(self, node: str, key: Key, grace_s: int, cause: str = "") -> None:
        """The agent ends the job and then the pod; a pod whose agent cannot be told is deleted."""
        berth, link = Berth(*key, node), self.link(node, key)
        pod = self._pod_of.get(berth)
        if link.connected.is_set():
            super()._terminate_on(node, key, grace_s, cause)
        elif self.recalls() and pod is not None and not pods.is_over(pod) and not self._is_lost(node):
            self._work(self._terminate_when_heard(link, berth, grace_s, cause))
        else:
            self._delete_pod(berth)

    async def _terminate_when_heard(self, link: AgentLink, berth: Berth, grace_s: int, cause: str) -> None:
        """After a loss its agent may be the only one that knows how the job ended, and says so when it calls."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CALL_S):
                await link.connected.wait()
        if link.connected.is_set():
            super()._terminate_on(berth.node, (berth.job_id, berth.generation), grace_s, cause)
        else:
            self._delete_pod(berth)

    def _on_batch_ended(self, node: str, key: Key, event: BatchEnded, seen: list[o.Observation]) -> None:
        """The pod is still there: the node is clear only when it is not."""
        if key in self._sent_away:
            self.link(node, key).confirm(("start", key))
            seen.append(o.JobVanished(*key, node, self._sent_away[key], event.at))
            return
        super()._on_batch_ended(node, key, msgspec.structs.replace(event, cleared=False), seen)
        assert isinstance(seen[-1], o.BatchFinished)
        self._note_end(node, seen[-1])

    def _on_cleared(self, node: str, key: Key, event: Cleared, seen: list[o.Observation]) -> None:
        if isinstance(event, _PodGone):
            super()._on_cleared(node, key, event, seen)
            return
        self.link(node, key).confirm(("end", key))
        if event.epilog_failed:
            self._epilog_failed.add(Berth(*key, node))
        self._delete_pod(Berth(*key, node))

    def _delete_pod(self, berth: Berth) -> None:
        self._leaving.add(berth)
        pod = self._pod_of.get(berth)
        if (pod is None and (berth.job_id, berth.generation) not in self._making) or (pod and pods.is_over(pod)):
            self.later(0.0, lambda: self._pod_gone(berth))
        if pod is not None:
            self._work(self._delete_now(berth, path_of(pod)))

    async def _delete_now(self, berth: Berth, path: str) -> None:
        """From a node that nobody answers for at once: the core has waited for it as long as SlurmdTimeout says."""
        params = {"gracePeriodSeconds": "0"} if self._is_lost(berth.node) else None
        if not await self._insist.delete(path, params):
            self._pod_of.pop(berth, None)
            self._pod_gone(berth)

    async def _sweep(self) -> None:
        """Starts that a daemon which died had begun or not quite ended: Secrets without a pod that nobody wants."""
        await asyncio.sleep(_SWEEP_AFTER_S)
        assert self._api is not None
        selector = {"labelSelector": f"{pods.CLUSTER_LABEL}={self._rules.cluster}"}
        for namespace in sorted(self._rules.namespaces):
            path = f"/api/v1/namespaces/{namespace}/secrets"
            try:
                found, _ = await self._api.list(path, selector)
            except ApiProblem as problem:
                log.warning("what earlier starts left in namespace %s is not known: %s", namespace, problem)
                continue
            alive = {(berth.job_id, berth.generation) for berth in self._pod_of} | self._gangs.keys()
            for secret in found:
                key = pods.start_of(secret)
                if key is not None and key not in alive:
                    log.info("removing what is left of job %d", key[0])
                    await self._insist.delete(f"{path}/{secret['metadata']['name']}")

    async def _delete_start(self, key: Key) -> None:
        """The Secret and, by ownership, whatever pods are left."""
        known = {
            pod["metadata"]["namespace"]
            for berth, pod in self._pod_of.items()
            if (berth.job_id, berth.generation) == key
        }
        for namespace in known or self._rules.namespaces:
            await self._insist.delete(f"/api/v1/namespaces/{namespace}/secrets/{pods.start_name(self._rules, *key)}")

    # --- what the cluster says of pods ---------------------------------------------------------------------

    def _pod_changed(self, kind: str, pod: Object) -> None:
        berth = pods.berth_of(pod)
        labels = pod["metadata"].get("labels") or {}
        assert self._landscape is not None
        if self._guests is not None:
            self._guests.pod_changed(kind, pod)
        if berth is None or labels.get(pods.CLUSTER_LABEL) != self._rules.cluster:
            held = self._guests.held_for(pod) if self._guests is not None else None
            self._landscape.other_pod_changed(kind, pod, held=held)
            return
        self._remember_ids(berth, pods.ids_of(pod))
        if kind == "DELETED":
            self._pod_of.pop(berth, None)
        else:
            self._pod_of[berth] = pod
        ended = kind == "DELETED" or pods.is_over(pod)
        if ended and self._gateway is not None:
            self._gateway.has_ended(berth)
        key = (berth.job_id, berth.generation)
        if pod["metadata"].get("deletionTimestamp") and not ended:
            self._note_sent_away(berth, pod)
        if ended and berth in self._leaving:
            self._pod_gone(berth)
        elif key in self._gangs:
            why = pods.ending(pod) if ended else pods.trouble(pod)
            if why:
                self._could_not_start(key, why, berth.node)
        elif ended and key not in self._done and berth not in self._gone:
            self._lost(berth, pod, kind)

    def _note_sent_away(self, berth: Berth, pod: Object) -> None:
        key = (berth.job_id, berth.generation)
        if berth not in self._leaving and key not in self._done and key not in self._sent_away:
            self._sent_away[key] = pods.sent_away(pod)
            log.warning("job %d on node %s: %s", berth.job_id, berth.node, self._sent_away[key])

    def _pod_gone(self, berth: Berth) -> None:
        if berth not in self._leaving:
            return
        self._leaving.discard(berth)
        self._gone.add(berth)
        failed = "its epilog failed" if berth in self._epilog_failed else ""
        self._epilog_failed.discard(berth)
        self._heard(berth.node, [_PodGone(berth.job_id, berth.generation, failed, at=self.now())])

    def _lost(self, berth: Berth, pod: Object, kind: str) -> None:
        """A pod of a running job ended and nobody had asked for it."""
        key = (berth.job_id, berth.generation)
        if pods.out_of_memory(pod):
            status = ExitStatus(signal=9, out_of_memory=True)
            end = o.BatchFinished(*key, status, self.now())
            self._note_end(berth.node, end)
            self._report([end])
            return
        why = self._sent_away.get(key) or ("the pod was deleted" if kind == "DELETED" else pods.ending(pod))
        log.warning("job %d on node %s: %s", berth.job_id, berth.node, why)
        self._report([o.JobVanished(*key, berth.node, why, self.now())])

    # --- what the cluster says of nodes --------------------------------------------------------------------

    def _held_on(self, node: str) -> tuple[Key, ...]:
        """Starts whose pod on this node has not ended: also those that no job of ours wants any more."""
        ours = [
            (berth.job_id, berth.generation)
            for berth, pod in self._pod_of.items()
            if berth.node == node and not pods.is_over(pod)
        ]
        theirs = self._guests.held_on(node) if self._guests is not None else []
        return tuple(sorted({*ours, *theirs}))


async def _all(works: Any) -> list[Any]:
    """Waits for all of them, also when one fails, and then raises what the first failed with."""
    results = await asyncio.gather(*works, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return list(results)


def _nobody(sock: socket.socket, _owner: Owner, _job_id: int) -> None:
    sock.close()
