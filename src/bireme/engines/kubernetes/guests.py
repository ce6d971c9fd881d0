"""The scheduler for everybody else's pods: those with `schedulerName: bireme` join Bireme's queue and are bound by it.

A pod, or a gang of them (`guest_gangs`), is submitted as one job whose tasks are the pods (`guest_pods`); the planner
places it like any other; `LaunchJob` becomes one binding and one event for each pod. The job ends when its pods have
ended. To end it is to evict them: disruption budgets are respected, and grace is honoured by the kubelet.

The engine owns it, shares its mirror of pods with it, and passes on the commands that are about guests. It decides
nothing. Invariant: a pod is in at most one job that has not ended; after a restart the jobs say which pods they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from bireme.core.model import commands as c
from bireme.core.model import observations as o
from bireme.core.model.jobs import HOLDING, Job, JobKind, JobSpec, Owner, Workload
from bireme.core.model.resources import Allocation, ExitStatus
from bireme.engines.kubernetes import guest_words
from bireme.engines.kubernetes.api import ApiProblem, KubernetesApi
from bireme.engines.kubernetes.guest_budgets import keepers
from bireme.engines.kubernetes.guest_catalogue import SERVICE, Catalogue
from bireme.engines.kubernetes.guest_crowd import Crowd, Turn
from bireme.engines.kubernetes.guest_gangs import Group, group_of, rank_of, size_of, whole_of
from bireme.engines.kubernetes.guest_neighbours import World, cannot_be_kept
from bireme.engines.kubernetes.guest_pods import (
    PARTITION,
    TIME_LIMIT,
    Needs,
    gates_of,
    is_guest,
    is_service,
    needs_of,
    unsupported,
)
from bireme.engines.kubernetes.guest_telling import Teller
from bireme.engines.kubernetes.guest_volumes import volume_rules, why_not_yet
from bireme.engines.kubernetes.nodes import Amounts
from bireme.engines.kubernetes.pods import binding, is_over
from bireme.ports import JobQueue, QueueRefusal, Report

log = logging.getLogger("bireme.engines.kubernetes")

Object = Mapping[str, Any]
Key = tuple[int, int]

_GATHER_S = 0.02
"""Pods of a gang are created one after another; so long is waited for more before anything is worked out."""
_MORE_S = 1.0
_STIR_S = 0.1
_TELL_EVERY_S = 5.0
_RETRY_S = 2.0
_TRIES = 5
_NAMED_MOST = 8
_NOBODY = 65534


@dataclass(slots=True)
class _Gang:
    """Pods that wait together; a single pod is a gang of one."""

    key: str
    group: Group | None
    size: int | None
    whole: int = 0
    """How many are to come, where it is known; for those beyond `size` it is waited only a moment."""
    enough_at: float | None = None
    """When there were first as many as it needs."""
    waiting: dict[str, Object] = field(default_factory=dict)
    """By uid: no node yet, no gate closed."""
    placed: set[str] = field(default_factory=set)
    """Uids of members that have a node."""
    submitted: tuple[str, ...] = ()
    """Uids of the pods of the job that waits in the queue."""
    job_ids: tuple[int, ...] = ()
    attempt: int = 0
    busy: bool = False
    """Something about it is being asked of the queue or of the API server."""
    refused: str = ""
    told: str = ""
    ruled_out: dict[str, set[str]] = field(default_factory=dict)
    """Nodes, by pod, that its neighbours ruled out when it was submitted."""


@dataclass(slots=True)
class _Placed:
    """A job of guests that holds its place."""

    job_id: int
    generation: int
    namespace: str
    nodes: dict[str, str]
    """Pod name -> node."""
    left: set[str]
    """Names of pods that have not ended."""
    each: Amounts
    """What it holds for each of them, GPUs aside."""
    worst: ExitStatus = field(default_factory=ExitStatus)
    leaving: bool = False
    binding: bool = True


class Guests:
    def __init__(
        self,
        api: KubernetesApi,
        queue: JobQueue,
        report: Report,
        now: Callable[[], float],
        work: Callable[[Coroutine[Any, Any, None]], None],
        accounts: Mapping[str, str],
        learn_labels: Callable[[Set[str]], None],
        world: Callable[[], World],
        gpus_a_node: Callable[[], int],
        pods_most: Callable[[str], int],
    ) -> None:
        """`accounts`: namespace -> account; a namespace that is not named there is its own account.

        `work` runs something in the background until the engine stops. `learn_labels` is told which labels of nodes
        rules ask about, before the queue hears of them. `world` is asked for pods that care about their neighbours,
        `gpus_a_node` for the most GPUs that a node has, `pods_most` for how many pods a node takes.
        """
        self.catalogue = Catalogue(api, self._ranks_changed, self.guard, self._look_again)
        """What else pods are judged by; the engine runs its mirrors."""
        self._ranked = asyncio.Event()
        """Set while the QOS are as the priority classes say."""
        self._guards: dict[Key, str] = {}
        self._guarding = False
        self._teller = Teller(api, now)
        self._learn_labels = learn_labels
        self._gpus_a_node = gpus_a_node
        self._crowd = Crowd(world, pods_most)
        self._stirring = False
        self._api, self._queue, self._report, self._now, self._work = api, queue, report, now, work
        self._accounts = accounts
        self._pods: dict[str, Object] = {}
        """Guests that have not ended, by namespace/name."""
        self._gangs: dict[str, _Gang] = {}
        self._gang_of: dict[str, str] = {}
        """Pod uid -> key of its gang."""
        self._placed: dict[Key, _Placed] = {}
        self._job_of: dict[str, Key] = {}
        """namespace/name of a placed pod -> its job."""
        self._checked = False
        """Everything was listed once."""
        self._dirty: dict[str, None] = {}
        self._gathering = False
        self._telling: asyncio.TimerHandle | None = None

    # --- life ----------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """What the journal says of guests, before the first pods are told: jobs that hold a place, or wait."""
        for job in self._queue.workloads():
            assert job.spec.workload is not None
            if isinstance(job.phase, HOLDING):
                self._hold(job, job.phase.allocation).binding = False
            else:
                self._waits_again(job)

    def _waits_again(self, job: Job) -> None:
        workload = job.spec.workload
        assert workload is not None
        base, _, attempt = workload.key.partition("#")
        gang = self._gangs.setdefault(base, _Gang(base, None, None))
        gang.attempt = int(attempt or 0)
        gang.job_ids = (*gang.job_ids, job.id)

    def check(self) -> None:
        """Once all pods are known: places whose pods ended, and jobs whose pods are gone, while nobody looked."""
        for placed in list(self._placed.values()):
            for name in list(placed.left):
                if f"{placed.namespace}/{name}" not in self._pods:
                    self._pod_over(placed, name, None)
        for gang in list(self._gangs.values()):
            if gang.job_ids and not gang.waiting:
                self._withdraw(gang)
        self._checked = True
        self._ranks_changed()
        self.guard()

    # --- classes and budgets -------------------------------------------------------------------------------

    def _ranks_changed(self) -> None:
        if self._checked:
            self._ranked.clear()
            self._work(self._keep_ranks())

    async def _keep_ranks(self) -> None:
        await self._queue.keep_ranks(self.catalogue.ranks)
        self._ranked.set()

    def guard(self) -> None:
        """A budget or what it covers may have changed: looked at in a moment, for all that changed by then."""
        if self._checked and not self._guarding and (self.catalogue.budgets or self._guards):
            self._guarding = True
            asyncio.get_running_loop().call_later(_STIR_S, self._tell_guards)

    def _tell_guards(self) -> None:
        """Tells of every job that a disruption budget keeps from being evicted, or no longer does."""
        self._guarding = False
        pods = {key: self._pods_of(placed) for key, placed in self._placed.items() if not placed.leaving}
        kept = keepers(self.catalogue.budgets, {key: found for key, found in pods.items() if found})
        news = [key for key in pods if kept.get(key, "") != self._guards.get(key, "")]
        self._guards = kept
        if news:
            self._report([o.GuardSeen(*key, kept.get(key, ""), self._now()) for key in news])

    def _pods_of(self, placed: _Placed) -> list[Object]:
        names = (f"{placed.namespace}/{name}" for name in placed.left)
        return [self._pods[name] for name in names if name in self._pods]

    # --- commands ------------------------------------------------------------------------------------------

    def takes(self, command: c.Command) -> bool:
        """Whether the command is about a job of guests."""
        match command:
            case c.LaunchJob() | c.LaunchStep():
                return command.job.spec.workload is not None
            case _:
                return (command.job_id, command.generation) in self._placed

    def obey(self, command: c.Command) -> None:
        match command:
            case c.LaunchJob():
                self._work(self._launch(command))
            case c.TerminateJob():
                self._work(self._evict(self._placed[(command.job_id, command.generation)]))
            case _:
                log.info("pods of others take no %s", type(command).__name__)

    def acknowledge(self, job_id: int, generation: int) -> bool:
        """Whether it was a job of guests: it is over."""
        placed = self._placed.pop((job_id, generation), None)
        if placed is None:
            return False
        for name in placed.nodes:
            self._job_of.pop(f"{placed.namespace}/{name}", None)
        return True

    def held_for(self, pod: Object) -> Amounts | None:
        """What a job of guests holds for this pod, if one does."""
        placed = self._placed.get(self._job_of.get(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}", (0, 0)))
        return None if placed is None else placed.each

    def held_on(self, node: str) -> list[Key]:
        return [key for key, placed in self._placed.items() if node in placed.nodes.values()]

    # --- what the cluster says -----------------------------------------------------------------------------

    def pod_changed(self, kind: str, pod: Object) -> None:
        if self._crowd.note(kind, pod):
            self._stir()
        if not is_guest(pod):
            return
        metadata = pod["metadata"]
        name, uid = f"{metadata['namespace']}/{metadata['name']}", metadata["uid"]
        over = kind == "DELETED" or is_over(pod)
        if over:
            self._pods.pop(name, None)
        else:
            self._pods[name] = pod
        placed = self._placed.get(self._job_of.get(name, (0, 0)))
        if over:
            self._leaves(uid)
            if placed is not None:
                self._pod_over(placed, metadata["name"], pod)
        elif pod["spec"].get("nodeName"):
            self._has_node(uid, pod)
        elif not metadata.get("deletionTimestamp"):
            self._waits(uid, pod)

    def nodes_changed(self) -> None:
        """What could not run before may now."""
        self._crowd.nodes_changed()
        self._look_again()

    def _look_again(self) -> None:
        for gang in self._gangs.values():
            if gang.refused:
                gang.refused = ""
                self._look_at(gang)

    def _waits(self, uid: str, pod: Object) -> None:
        gang = self._gang(uid, pod)
        gang.waiting[uid] = pod
        self._look_at(gang)

    def _has_node(self, uid: str, pod: Object) -> None:
        if self._gang_of.get(uid) == uid:
            self._gangs.pop(uid, None)
            self._look_at_all(self._crowd.lets_go(uid))
            return
        gang = self._gang(uid, pod)
        gang.waiting.pop(uid, None)
        gang.placed.add(uid)
        if gang.job_ids and not any(other in gang.waiting for other in gang.submitted):
            gang.job_ids, gang.submitted = (), ()
            self._look_at_all(self._crowd.lets_go(gang.key))
            if gang.waiting:
                self._look_at(gang)
        if gang.group is None:
            self._forget(gang)

    def _leaves(self, uid: str) -> None:
        gang = self._gangs.get(self._gang_of.pop(uid, ""))
        if gang is None:
            return
        gang.placed.discard(uid)
        if gang.waiting.pop(uid, None) is not None and uid in gang.submitted:
            self._withdraw(gang)
        if not gang.waiting and not gang.placed:
            self._forget(gang)

    def _gang(self, uid: str, pod: Object) -> _Gang:
        key = self._gang_of.get(uid)
        if key is None:
            group = group_of(pod)
            key = f"{group.kind}/{group.namespace}/{group.name}" if group else uid
            self._gang_of[uid] = key
        gang = self._gangs.get(key)
        if gang is None:
            group = group_of(pod)
            gang = self._gangs[key] = _Gang(key, group, group.size if group else 1)
        elif gang.group is None and gang.size is None:  # known from the journal only
            gang.group = group_of(pod)
            gang.size = gang.group.size if gang.group else 1
        return gang

    def _forget(self, gang: _Gang) -> None:
        self._gangs.pop(gang.key, None)
        self._look_at_all(self._crowd.lets_go(gang.key))

    # --- into the queue ------------------------------------------------------------------------------------

    def _look_at(self, gang: _Gang) -> None:
        self._dirty[gang.key] = None
        if not self._gathering:
            self._gathering = True
            asyncio.get_running_loop().call_later(_GATHER_S, self._look)

    def _look(self) -> None:
        self._gathering = False
        dirty, self._dirty = self._dirty, {}
        for key in dirty:
            gang = self._gangs.get(key)
            if gang is not None and not gang.busy:
                self._consider(gang)
        if self._telling is None and any(gang.waiting for gang in self._gangs.values()):
            self._telling = asyncio.get_running_loop().call_later(_TELL_EVERY_S, self._tell_all)

    def _consider(self, gang: _Gang) -> None:
        if gang.size is None:
            gang.busy = True
            self._work(self._learn_size(gang))
            return
        ready = [pod for pod in gang.waiting.values() if not gates_of(pod)]
        if gang.size <= 1 and gang.group is not None:
            self._split(gang, ready)
            return
        if gang.job_ids and not gang.submitted:  # of the journal: its pods are those that wait
            gang.submitted = tuple(gang.waiting)
        if gang.submitted or gang.refused or not ready or len(ready) + len(gang.placed) < gang.size:
            return
        if len(ready) + len(gang.placed) < gang.whole and self._waits_for_more(gang):
            return
        lacking = gang.size - len(gang.placed)
        if lacking <= 0 and gang.group is not None:
            self._split(gang, ready)  # it has what it needs: each further pod is welcome as soon as it fits
            return
        ready = sorted(ready, key=rank_of)[:lacking]
        why = sorted({word for pod in ready for word in (*unsupported(pod), *cannot_be_kept(pod))})
        if why:
            gang.refused = f"Bireme cannot schedule this: {', '.join(why)}"
            return
        lacks = sorted({word for pod in ready for word in why_not_yet(pod, self.catalogue.stock)})
        if lacks:
            gang.refused = f"it waits for its volumes: {', '.join(lacks)}"
            return
        match self._crowd.turn(gang.key, ready):
            case Turn.LATER:
                return
            case Turn.NEVER:
                gang.refused = "Bireme cannot schedule this: affinity or spread between the pods of a gang"
                return
        gang.busy = True
        self._work(self._submit(gang, ready))

    def _waits_for_more(self, gang: _Gang) -> bool:
        """Whether to wait a moment for the rest: of few that come first the master may not be one."""
        loop = asyncio.get_running_loop()
        if gang.enough_at is None:
            gang.enough_at = loop.time()
            loop.call_later(_MORE_S, self._look_at, gang)
        return loop.time() < gang.enough_at + _MORE_S

    # --- neighbours ----------------------------------------------------------------------------------------

    def _look_at_all(self, keys: Iterable[str]) -> None:
        for gang in [self._gangs[key] for key in keys if key in self._gangs]:
            self._look_at(gang)

    def _stir(self) -> None:
        """A pod has left its node: who may not be beside it may find a place now."""
        if not self._stirring:
            self._stirring = True
            asyncio.get_running_loop().call_later(_STIR_S, self._look_for_places)

    def _look_for_places(self) -> None:
        self._stirring = False
        for gang in [self._gangs[key] for key in self._crowd.those_shut_out() if key in self._gangs]:
            gang.refused = ""
            self._look_at(gang)
        for gang in [self._gangs[key] for key in self._crowd.with_particular if key in self._gangs]:
            self._check_neighbours(gang)

    def _check_neighbours(self, gang: _Gang) -> None:
        """What was ruled out when it was submitted may be another now."""
        for pod in self._crowd.particular(gang.key):
            before = gang.ruled_out.get(pod["metadata"]["uid"], set())
            if gang.job_ids and self._crowd.ruled_out(gang.key, pod) != before:
                self._withdraw(gang)
                return

    # --- submitting ----------------------------------------------------------------------------------------

    def _split(self, gang: _Gang, ready: Iterable[Object]) -> None:
        """Pods of a group that need not start together: each is a gang of its own."""
        for pod in list(ready):
            uid = pod["metadata"]["uid"]
            gang.waiting.pop(uid, None)
            self._gang_of[uid] = uid
            alone = self._gangs.setdefault(uid, _Gang(uid, None, 1))
            alone.group, alone.size = None, 1
            alone.waiting[uid] = pod
            self._consider(alone)
        if not gang.waiting and not gang.placed:
            self._forget(gang)

    async def _learn_size(self, gang: _Gang) -> None:
        assert gang.group is not None
        try:
            found = await self._api.ask("GET", gang.group.path)
            gang.size, gang.whole = max(1, size_of(gang.group, found)), whole_of(gang.group, found)
        except ApiProblem as problem:
            gang.told = f"{gang.group.kind} {gang.group.name} cannot be read: {problem}"
            await asyncio.sleep(_RETRY_S)
        finally:
            gang.busy = False
        self._look_at(gang)

    async def _submit(self, gang: _Gang, pods: list[Object]) -> None:
        gang.submitted = tuple(pod["metadata"]["uid"] for pod in pods)
        gang.attempt += 1
        try:
            await self._ranked.wait()
            specs = self._specs(gang, pods)
            self._learn_labels({key for spec in specs for key in _asked_labels(spec)})
            first, count = await self._queue.submit(specs, f"{gang.key}#{gang.attempt}")
            gang.job_ids = tuple(range(first, first + count))
        except QueueRefusal as refusal:
            gang.submitted = ()
            if refusal.passing:
                await asyncio.sleep(_RETRY_S)
                self._look_at(gang)
            else:
                gang.refused = str(refusal)
                self._crowd.shut_out(gang.key, by_others=any(gang.ruled_out.values()))
                self._look_at_all(self._crowd.lets_go(gang.key))
        except (ValueError, KeyError, TypeError) as error:  # a pod that the API server let through and we cannot read
            log.warning("pod %s cannot be read", pods[0]["metadata"]["name"], exc_info=True)
            gang.submitted, gang.refused = (), f"Bireme cannot read this pod: {error}"
        finally:
            gang.busy = False
        if gang.submitted and not all(uid in gang.waiting for uid in gang.submitted):
            self._withdraw(gang)  # one left while it was being submitted

    def _specs(self, gang: _Gang, pods: list[Object]) -> list[JobSpec]:
        """One component for each kind of pod in the gang."""
        components: dict[Needs, list[Object]] = {}
        gang.ruled_out = {}
        for pod in pods:
            out = gang.ruled_out[pod["metadata"]["uid"]] = self._crowd.ruled_out(gang.key, pod)
            components.setdefault(self._needs(gang, pod, out), []).append(pod)
        several = len(components) > 1
        return [
            self._spec(gang, needs, members, offset if several else None)
            for offset, (needs, members) in enumerate(components.items())
        ]

    def _needs(self, gang: _Gang, pod: Object, out: set[str]) -> Needs:
        """Several of a gang share what the planner does not count: on every node as few as the smallest one holds."""
        most = self._crowd.most_a_node(gang.key, pod) if gang.size != 1 else 0
        return needs_of(pod, out | self._crowd.full, volume_rules(pod, self.catalogue.stock), most)

    def _spec(self, gang: _Gang, needs: Needs, members: list[Object], offset: int | None) -> JobSpec:
        first, namespace = members[0], members[0]["metadata"]["namespace"]
        annotations = first["metadata"].get("annotations") or {}
        labels = first["metadata"].get("labels") or {}
        limit = annotations.get(TIME_LIMIT) or first["spec"].get("activeDeadlineSeconds")
        partition = annotations.get(PARTITION) or labels.get(PARTITION)
        names = tuple(pod["metadata"]["name"] for pod in members)
        kind = gang.group.kind if gang.group else "Pod"
        return JobSpec(
            kind=JobKind.PODS,
            name=gang.group.name if gang.group else names[0],
            owner=Owner(uid=_NOBODY, gid=_NOBODY, user=namespace, group=namespace),
            account=self._accounts.get(namespace, namespace),
            qos=self._qos_of(first),
            partitions=(partition,) if partition else (),
            resources=needs.request(len(members), self._gpus_a_node()),
            time_limit_s=int(limit) if limit else None,
            time_limit_given=True,
            het_component=offset,
            site_factor=int(first["spec"].get("priority", 0)),
            requeue=False,
            workload=Workload(f"{gang.key}#{gang.attempt}", namespace, names, kind),
        )

    def _qos_of(self, pod: Object) -> str:
        named = pod["spec"].get("priorityClassName", "") or (SERVICE if is_service(pod) else "")
        return self._queue.qos_named(named)

    def _withdraw(self, gang: _Gang) -> None:
        """Its pods are not what they were when it was submitted: out of the queue, and looked at anew."""
        ids, gang.job_ids, gang.submitted = gang.job_ids, (), ()
        self._look_at_all(self._crowd.lets_go(gang.key))
        for job_id in ids[:1]:
            self._work(self._queue.withdraw(job_id))
        if gang.waiting:
            self._look_at(gang)

    # --- binding -------------------------------------------------------------------------------------------

    def _hold(self, job: Job, allocation: Allocation) -> _Placed:
        workload = job.spec.workload
        assert workload is not None
        nodes = dict(zip(workload.pods, (share.node for share in allocation.shares for _ in range(share.tasks))))
        asked = job.spec.resources
        cpus = asked.cpus_per_task or 1
        each = Amounts(1000 * cpus, cpus * (asked.memory_per_cpu_mib or 0))
        placed = _Placed(job.id, allocation.generation, workload.namespace, nodes, set(workload.pods), each)
        self._placed[(job.id, allocation.generation)] = placed
        for name in workload.pods:
            self._job_of[f"{workload.namespace}/{name}"] = (job.id, allocation.generation)
        return placed

    async def _launch(self, command: c.LaunchJob) -> None:
        key = (command.job.id, command.allocation.generation)
        placed = self._placed.get(key) or self._hold(command.job, command.allocation)
        obstacle = self._take_places(placed)
        if obstacle:
            self.acknowledge(*key)
            self._report([o.JobRefused(*key, obstacle, self._now())])
            return
        placed.binding = True
        problems = await asyncio.gather(*(self._bind(placed, name, node) for name, node in placed.nodes.items()))
        placed.binding = False
        failed = [problem for problem in problems if problem]
        for problem in failed[:_NAMED_MOST]:
            log.warning("job %d: %s", command.job.id, problem)
        exist = any(f"{placed.namespace}/{name}" in self._pods for name in placed.nodes)
        if len(failed) == len(problems) and exist:
            self.acknowledge(*key)
            self._report([o.JobRefused(*key, failed[0], self._now())])
            return
        # Pods that were all deleted before they had a place end their job: there is nothing to try again with.
        self._report([o.JobLaunched(*key, self._now())])
        spec = command.job.spec
        if spec.workload is not None and spec.workload.kind == "PodGroup" and not spec.het_component:
            await self._teller.group_bound(spec.workload.namespace, spec.name)
        self.guard()
        if not placed.left:
            self._all_over(placed)

    async def _bind(self, placed: _Placed, name: str, node: str) -> str:
        """Empty when it is bound; else why not. What cannot be bound is left to whoever made it."""
        pod = self._pods.get(f"{placed.namespace}/{name}")
        if pod is None:
            self._pod_over(placed, name, None)
            return f"pod {name} is gone"
        if pod["spec"].get("nodeName"):
            return "" if pod["spec"]["nodeName"] == node else f"pod {name} is on {pod['spec']['nodeName']} already"
        path = f"/api/v1/namespaces/{placed.namespace}/pods/{name}/binding"
        for attempt in range(_TRIES):
            try:
                await self._api.ask("POST", path, binding(pod, node))
                self._work(self._teller.bound(pod, node))
                return ""
            except ApiProblem as problem:
                if not problem.passing or attempt == _TRIES - 1:
                    self._crowd.leave(pod["metadata"]["uid"])
                    self._pod_over(placed, name, None)
                    return f"pod {name} could not be bound to {node}: {problem}"
                await asyncio.sleep(_RETRY_S)
        raise AssertionError("the last try returns")

    def _take_places(self, placed: _Placed) -> str:
        """Empty: its pods may go where the planner said; else what came in the way, and they are looked at anew."""
        waiting = [(self._pods.get(f"{placed.namespace}/{name}"), node) for name, node in placed.nodes.items()]
        places = [(pod, node) for pod, node in waiting if pod is not None and not pod["spec"].get("nodeName")]
        gang = next((self._gangs.get(self._gang_of.get(pod["metadata"]["uid"], "")) for pod, _ in places), None)
        if gang is None:
            return ""
        obstacle = self._crowd.take(gang.key, places)
        if obstacle:
            self._withdraw(gang)
        return obstacle

    # --- ending --------------------------------------------------------------------------------------------

    def _pod_over(self, placed: _Placed, name: str, pod: Object | None) -> None:
        if name not in placed.left:
            return
        placed.left.discard(name)
        status = guest_words.exit_status(pod)
        if not status.ok and placed.worst.ok:
            placed.worst = status
        if not placed.left and not placed.binding:
            self._all_over(placed)

    def _all_over(self, placed: _Placed) -> None:
        at, key = self._now(), (placed.job_id, placed.generation)
        if placed.leaving:
            self._report([o.JobCleared(*key, at)])
        else:
            self._report([o.BatchFinished(*key, placed.worst, at, cleared=True)])

    async def _evict(self, placed: _Placed) -> None:
        placed.leaving = True
        if not placed.left:
            self._all_over(placed)
            return
        await asyncio.gather(*(self._evict_one(placed, name) for name in sorted(placed.left)))

    async def _evict_one(self, placed: _Placed, name: str) -> None:
        """Until it goes: a disruption budget may say "not now" (429) for as long as it likes."""
        path = f"/api/v1/namespaces/{placed.namespace}/pods/{name}/eviction"
        body = guest_words.eviction(placed.namespace, name)
        while name in placed.left:
            try:
                await self._api.ask("POST", path, body)
                return
            except ApiProblem as problem:
                if problem.status == 404:
                    self._pod_over(placed, name, None)
                    return
                if not problem.passing:
                    log.error("cannot evict %s/%s: %s", placed.namespace, name, problem)
                    return
                await asyncio.sleep(_RETRY_S)

    # --- saying why ----------------------------------------------------------------------------------------

    def _tell_all(self) -> None:
        """Once for every new reason of a gang that waits; nothing is asked of the API server for the others."""
        self._telling = None
        waiting = [gang for gang in self._gangs.values() if gang.waiting]
        for gang in waiting:
            self._check_neighbours(gang)
            why = self._why(gang)
            if why and gang.job_ids:
                self._look_at_all(self._crowd.waits(gang.key))
            if why and why != gang.told:
                gang.told = why
                self._work(self._teller.waits(list(gang.waiting.values()), gang.group, why))
        if waiting:
            self._telling = asyncio.get_running_loop().call_later(_TELL_EVERY_S, self._tell_all)

    def why_outside(self, namespace: str, name: str) -> str:
        """Why a pod is not in the queue; empty: there is no such pod of others that waits."""
        pod = self._pods.get(f"{namespace}/{name}")
        gang = self._gangs.get(self._gang_of.get(pod["metadata"]["uid"], "")) if pod is not None else None
        if pod is None or gang is None:
            return ""
        gates = gates_of(pod)
        return f"its scheduling gates are closed: {', '.join(gates)}" if gates else self._why(gang) or "it just came"

    def _why(self, gang: _Gang) -> str:
        if gang.refused:
            return gang.refused
        if gang.job_ids:
            return self._queue.why_waiting(gang.job_ids[0])
        if gang.size is not None and len(gang.waiting) + len(gang.placed) < gang.size:
            there = len(gang.waiting) + len(gang.placed)
            return f"the gang needs {gang.size} pods to start together, {there} exist"
        return ""


def _asked_labels(spec: JobSpec) -> Set[str]:
    rules = spec.resources.node_rules
    return rules.keys() if rules is not None else frozenset()
