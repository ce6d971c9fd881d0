"""The scheduler for everybody else's pods: those with `schedulerName: bireme` join Bireme's queue and are bound by it.

A pod, or a gang of them (`gangs`), is submitted as one job whose tasks are the pods (`jobs`); the planner
places it like any other; `LaunchJob` becomes one binding and one event for each pod (`binding`). Its end is that
of its pods (`places`); to end it is to evict them (`eviction`).

The engine owns it, shares its mirror of pods with it, and passes on the commands that are about guests. It decides
nothing. Invariant: a pod is in at most one job that has not ended; after a restart the jobs say which pods they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from bireme.core.model import commands as c
from bireme.core.model import observations as o
from bireme.core.model.jobs import HOLDING, Job, JobSpec
from bireme.core.model.node_rules import NodeRules
from bireme.engines.kubernetes.apiserver.api import ApiProblem, KubernetesApi
from bireme.engines.kubernetes.apiserver.insistence import Insistence
from bireme.engines.kubernetes.guests.binding import Binder
from bireme.engines.kubernetes.guests.budgets import keepers
from bireme.engines.kubernetes.guests.catalogue import SERVICE, Catalogue
from bireme.engines.kubernetes.guests.crowd import Crowd, Sight, Turn
from bireme.engines.kubernetes.guests.eviction import evict
from bireme.engines.kubernetes.guests.gangs import (
    Gang,
    Group,
    attempt_of,
    group_of,
    rank_of,
    size_of,
    stage_of,
    stages_of,
    submission_key,
    whole_of,
)
from bireme.engines.kubernetes.guests.jobs import job_of
from bireme.engines.kubernetes.guests.neighbours import Ground, cannot_be_kept
from bireme.engines.kubernetes.guests.places import Key, Place, Places
from bireme.engines.kubernetes.guests.pods import (
    Needs,
    gates_of,
    is_guest,
    is_service,
    needs_of,
    own_rules,
    unsupported,
)
from bireme.engines.kubernetes.guests.telling import Teller
from bireme.engines.kubernetes.guests.volumes import volume_rules, why_not_yet
from bireme.engines.kubernetes.nodes import Amounts
from bireme.engines.kubernetes.pods import is_over
from bireme.ports import JobQueue, QueueRefusal, Report

log = logging.getLogger("bireme.engines.kubernetes")

Object = Mapping[str, Any]

_GATHER_S = 0.02
"""Pods of a gang are created one after another; so long is waited for more before anything is worked out."""
_MORE_S = 1.0
_STIR_S = 0.1
_TELL_EVERY_S = 5.0
_VERDICT_S = 0.25
"""So often it is asked whether the planner has looked at a pod that keeps others away meanwhile."""
_VERDICTS = 20
_RETRY_S = 2.0
_HELD_FOR_EACH = ("cpus_per_task", "memory_per_cpu_mib", "gres_per_task")
"""Of a job of pods: what it holds for each of them."""


class Guests:
    def __init__(
        self,
        api: KubernetesApi,
        insist: Insistence,
        queue: JobQueue,
        report: Report,
        now: Callable[[], float],
        work: Callable[[Coroutine[Any, Any, None]], None],
        accounts: Mapping[str, str],
        learn_labels: Callable[[Set[str]], None],
        ground: Callable[[], Ground],
        gpus_a_node: Callable[[], int],
        pods_most: Callable[[str], int],
        takes: Callable[[str, NodeRules], bool],
    ) -> None:
        """`accounts`: namespace -> account; a namespace that is not named there is its own account.

        `work` runs something in the background until the engine stops. `learn_labels` is told which labels of nodes
        rules ask about, before the queue hears of them. `ground` is asked for pods that care about their neighbours,
        `gpus_a_node` for the most GPUs that a node has, `pods_most` for how many pods a node takes, `takes` for
        whether it takes one with these rules at the moment.
        """
        self.catalogue = Catalogue(api, self._ranks_changed, self.guard, self._look_again)
        """What else pods are judged by; the engine runs its mirrors."""
        self._ranked = asyncio.Event()
        """Set while the QOS are as the priority classes say."""
        self._guards: dict[Key, str] = {}
        self._guarding = False
        self._teller = Teller(api, now)
        self._learn_labels = learn_labels
        self._gpus_a_node, self._node_takes = gpus_a_node, takes
        self._crowd = Crowd(ground, pods_most, lambda: self.catalogue.stock, self._usable)
        self._stirring = False
        self._api, self._queue, self._report, self._now, self._work = api, queue, report, now, work
        self._accounts = accounts
        self._pods: dict[str, Object] = {}
        """Guests that have not ended, by namespace/name."""
        self._gangs: dict[str, Gang] = {}
        self._stages: dict[str, Mapping[str, str]] = {}
        """Of JobSets whose parts come one after another, by the group's key: replicated job -> stage."""
        self._gang_of: dict[str, str] = {}
        """Pod uid -> key of its gang."""
        self._places = Places(report, now)
        self._binder = Binder(
            insist, self._places, self._pods, self._teller, report, now, work, self._take_places, self._crowd.leave
        )
        self._checked = False
        """Everything was listed once."""
        self._dirty: dict[str, None] = {}
        self._gathering = False
        self._telling: asyncio.TimerHandle | None = None

    # --- life ----------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """What the journal says of guests, before the first pods are told: jobs that hold a place, or wait."""
        known = self._queue.workloads()
        self._learn_labels({key for job in known for key in _asked_labels(job.spec)})
        for job in known:
            assert job.spec.workload is not None
            if isinstance(job.phase, HOLDING):
                self._places.hold(job, job.phase.allocation).binding = False
            else:
                self._waits_again(job)

    def _waits_again(self, job: Job) -> None:
        workload = job.spec.workload
        assert workload is not None
        base, attempt = attempt_of(workload.key)
        gang = self._gangs.setdefault(base, Gang(base, None, None))
        gang.attempt = attempt
        gang.job_ids = (*gang.job_ids, job.id)
        gang.submitted = (*gang.submitted, *workload.uids)

    def check(self) -> list[Object]:
        """Once all pods are known: places whose pods ended, and jobs whose pods are gone, while nobody looked.

        Returns the pods that were found to have taken over a place of their gang.
        """
        taken_over: list[Object] = []
        for place in self._places.all():
            gone = [name for name in place.left if not self._is_there(place, name)]
            for name in gone:
                place.left.discard(name)  # not told as over yet: another may be in its place
            taken_over += self._found_in_place(place)
            place.left.update(name for name in gone if name in place.nodes)
            for name in gone:
                self._places.pod_over(place, name, None)
        for gang in list(self._gangs.values()):
            if gang.job_ids and not self._is_as_submitted(gang):
                self._withdraw(gang)
        self._checked = True
        self._gather()
        self._ranks_changed()
        self.guard()
        return taken_over

    def _is_as_submitted(self, gang: Gang) -> bool:
        """Of a job that waits since an earlier daemon: its pods are all there, and mind no others, whose places and
        claims are not what they were."""
        pods = [gang.waiting.get(uid) for uid in gang.submitted or gang.waiting]
        return bool(pods) and all(pod is not None and not self._crowd.is_particular(pod) for pod in pods)

    def _is_there(self, place: Place, name: str) -> bool:
        pod = self._pods.get(place.full_name(name))
        return pod is not None and place.means(pod)

    def _found_in_place(self, place: Place) -> Iterator[Object]:
        """Pods that an earlier daemon bound to where one of their gang had ended (`_into_vacancies`)."""
        for pod in list(self._pods.values()):
            group, node = group_of(pod), pod["spec"].get("nodeName")
            mine = group is not None and f"{place.gang}/".startswith(f"{group.key}/")
            if not node or not mine or self._places.held_for(pod) is not None:
                continue
            ended = (name for name in place.nodes if name not in place.left)
            if (vacant := next((name for name in ended if place.nodes[name] == node), None)) is not None:
                self._places.take_over(place, vacant, pod)
                yield pod

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
        """Tells of every job that a disruption budget keeps from being evicted, or no longer does.

        Also of one that is to end and that its budget keeps: who waits for its place is told why.
        """
        self._guarding = False
        pods = {place.key: self._pods_of(place) for place in self._places.all()}
        kept = keepers(self.catalogue.budgets, {key: found for key, found in pods.items() if found})
        news = [key for key in pods if kept.get(key, "") != self._guards.get(key, "")]
        self._guards = kept
        self._report_guards(news)

    def _guard_at_once(self, place: Place) -> None:
        """Of a job that is about to start, as if it were alone: nobody may choose it as a victim meanwhile."""
        kept = keepers(self.catalogue.budgets, {place.key: self._pods_of(place)})
        self._guards.update(kept)
        self._report_guards(list(kept))

    def _report_guards(self, keys: Sequence[Key]) -> None:
        if keys:
            self._report([o.GuardSeen(*key, self._guards.get(key, ""), self._now()) for key in keys])

    def _pods_of(self, place: Place) -> list[Object]:
        """Without those that are being deleted: no budget keeps them."""
        found = (self._pods.get(place.full_name(name)) for name in place.left)
        return [pod for pod in found if pod is not None and not pod["metadata"].get("deletionTimestamp")]

    # --- commands ------------------------------------------------------------------------------------------

    def takes(self, command: c.Command) -> bool:
        """Whether the command is about a job of guests."""
        match command:
            case c.LaunchJob() | c.LaunchStep() | c.FindJob():
                return command.job.spec.workload is not None
            case c.SubmitReplica() | c.EndReplica():
                return False
            case _:
                return (command.job_id, command.generation) in self._places

    def obey(self, command: c.Command) -> None:
        match command:
            case c.LaunchJob():
                self._guard_at_once(self._places.hold(command.job, command.allocation))
                self._work(self._bind(command))
            case c.TerminateJob():
                self._work(evict(self._api, self._places, self._places[command.job_id, command.generation]))
            case _:
                log.info("pods of others take no %s", type(command).__name__)

    async def _bind(self, command: c.LaunchJob) -> None:
        await self._binder.bind(command)
        self.guard()

    def acknowledge(self, job_id: int, generation: int) -> bool:
        """Whether it was a job of guests: it is over."""
        return self._places.forget((job_id, generation))

    def held_for(self, pod: Object) -> Amounts | None:
        """What a job of guests holds for this pod, if one does."""
        return self._places.held_for(pod)

    def held_on(self, node: str) -> list[Key]:
        return self._places.on(node)

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
        place = self._places.of_pod(name)
        if place is not None and not place.means(pod):  # replaced while nobody looked: the one with the place is gone
            self._places.pod_over(place, metadata["name"], None)
            place = None
        if over:
            self._leaves(uid)
            if place is not None:
                self._places.pod_over(place, metadata["name"], pod)
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

    def _gang(self, uid: str, pod: Object) -> Gang:
        key = self._gang_of.get(uid)
        if key is None:
            group = group_of(pod)
            key = self._staged(group, pod).key if group else uid
            self._gang_of[uid] = key
        gang = self._gangs.get(key)
        if gang is None:
            group = group_of(pod)
            gang = self._gangs[key] = Gang(key, self._staged(group, pod) if group else None, group.size if group else 1)
        elif gang.group is None and gang.size is None:  # known from the journal only
            group = group_of(pod)
            gang.group = self._staged(group, pod) if group else None
            gang.size = gang.group.size if gang.group else 1
        return gang

    def _staged(self, group: Group, pod: Object) -> Group:
        """The part of a JobSet that the pod is of, where its parts come one after another, as far as that is known."""
        stages = self._stages.get(group.key)
        return replace(group, stage=stage_of(pod, stages)) if stages else group

    def _learn_stages(self, gang: Gang, found: Object) -> None:
        """Of a JobSet: pods that wait as one gang, though they are of a part that is one of its own, become that."""
        assert gang.group is not None
        stages = stages_of(found) if gang.group.kind == "JobSet" else {}
        if not any(stages.values()) or gang.group.stage:
            return
        self._stages[gang.group.key] = stages
        for uid, pod in list(gang.waiting.items()):
            if stage_of(pod, stages):
                del gang.waiting[uid], self._gang_of[uid]
                self._waits(uid, pod)
        for placed in [one for one in self._pods.values() if one["metadata"]["uid"] in gang.placed]:
            if stage_of(placed, stages):
                uid = placed["metadata"]["uid"]
                gang.placed.discard(uid)
                del self._gang_of[uid]
                self._has_node(uid, placed)
        if not gang.waiting and not gang.placed:
            self._forget(gang)

    def _forget(self, gang: Gang) -> None:
        self._gangs.pop(gang.key, None)
        if gang.group is not None:
            first = replace(gang.group, stage="").key
            if not any(key == first or key.startswith(f"{first}/") for key in self._gangs):
                self._stages.pop(first, None)
        self._look_at_all(self._crowd.lets_go(gang.key))

    # --- into the queue ------------------------------------------------------------------------------------

    def _look_at(self, gang: Gang) -> None:
        self._dirty[gang.key] = None
        self._gather()

    def _gather(self) -> None:
        """Not before everything was listed once: who looks sooner finds no node that takes a pod."""
        if self._checked and self._dirty and not self._gathering:
            self._gathering = True
            asyncio.get_running_loop().call_later(_GATHER_S, self._look)

    def _look(self) -> None:
        self._gathering = False
        dirty, self._dirty = self._dirty, {}
        self._crowd.looks_at(dirty)
        for key in dirty:
            gang = self._gangs.get(key)
            if gang is not None and not gang.busy:
                self._consider(gang)
        self._look_at_all(self._crowd.looked_at())
        if self._telling is None and any(gang.waiting for gang in self._gangs.values()):
            self._telling = asyncio.get_running_loop().call_later(_TELL_EVERY_S, self._tell_all)

    def _consider(self, gang: Gang) -> None:
        if gang.size is None:
            gang.busy = True
            self._work(self._learn_size(gang))
            return
        ready = [pod for pod in gang.waiting.values() if not gates_of(pod)]
        if gang.size <= 1 and gang.group is not None:
            self._split(gang, ready)
            return
        if gang.job_ids and not gang.submitted:  # of a journal without uids: its pods are those that wait
            gang.submitted = tuple(gang.waiting)
        if gang.group is not None:
            ready = self._into_vacancies(gang, ready)
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

    def _into_vacancies(self, gang: Gang, ready: Sequence[Object]) -> list[Object]:
        """Pods made in the stead of members that have ended take what their gang's job holds for these: on a full
        cluster nothing else is free, and the job gives nothing back before all its pods have ended.

        Returns those for whom there is nothing.
        """
        rest = []
        for pod in sorted(ready, key=rank_of):
            found = next(self._vacancies(gang, pod), None)
            if found is None:
                rest.append(pod)
                continue
            place, vacant = found
            uid, node = pod["metadata"]["uid"], self._places.take_over(place, vacant, pod)
            gang.waiting.pop(uid)
            gang.placed.add(uid)
            self._work(self._fill(gang, place, pod, node))
        return rest

    def _vacancies(self, gang: Gang, pod: Object) -> Iterator[tuple[Place, str]]:
        """(place, name of the one that ended): the same is held as this pod needs, and the node takes it."""
        uid, asks, stock = pod["metadata"]["uid"], needs_of(pod).request(1), self.catalogue.stock
        if uid in gang.submitted or unsupported(pod) or why_not_yet(pod, stock):
            return
        rules = own_rules(pod, volume_rules(pod, stock))
        for place in self._places.of_gang(gang.key):
            asked = place.asked
            if any(getattr(asked, name) != getattr(asks, name) for name in _HELD_FOR_EACH):
                continue
            for vacant in place.vacant:
                node = place.nodes[vacant]
                if self._node_takes(node, rules) and not self._crowd.take(gang.key, [(pod, node)]):
                    yield place, vacant
                    return

    async def _fill(self, gang: Gang, place: Place, pod: Object, node: str) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        problem = await self._binder.bind_one(place, name, node)
        self.guard()
        if not problem:
            return
        log.warning("job %d: %s", place.job_id, problem)
        await asyncio.sleep(_RETRY_S)
        now = self._pods.get(place.full_name(name))
        if now is not None and now["metadata"]["uid"] == uid and not now["spec"].get("nodeName"):
            gang.placed.discard(uid)
            self._waits(uid, now)

    def _waits_for_more(self, gang: Gang) -> bool:
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
        known: dict[str, set[str]] = {}
        for gang in [self._gangs[key] for key in self._crowd.with_particular if key in self._gangs]:
            self._check_neighbours(gang, known)

    def _check_neighbours(self, gang: Gang, known: dict[str, set[str]]) -> None:
        """What was ruled out when it was submitted may be another now. `known`: what was found so far."""
        in_queue = gang.job_ids and self._crowd.slice_of(gang.key) is None
        if in_queue and self._crowd.others_moved(gang.key, gang.ruled_out, known):
            self._withdraw(gang)

    # --- submitting ----------------------------------------------------------------------------------------

    def _split(self, gang: Gang, ready: Iterable[Object]) -> None:
        """Pods of a group that need not start together: each is a gang of its own."""
        for pod in list(ready):
            uid = pod["metadata"]["uid"]
            gang.waiting.pop(uid, None)
            self._gang_of[uid] = uid
            alone = self._gangs.setdefault(uid, Gang(uid, None, 1))
            alone.group, alone.size = None, 1
            alone.waiting[uid] = pod
            self._consider(alone)
        if not gang.waiting and not gang.placed:
            self._forget(gang)

    async def _learn_size(self, gang: Gang) -> None:
        assert gang.group is not None
        try:
            found = await self._api.ask("GET", gang.group.path)
            self._learn_stages(gang, found)
            gang.size, gang.whole = max(1, size_of(gang.group, found)), whole_of(gang.group, found)
        except ApiProblem as problem:
            gang.told = f"{gang.group.kind} {gang.group.name} cannot be read: {problem}"
            await asyncio.sleep(_RETRY_S)
        finally:
            gang.busy = False
        self._look_at(gang)

    async def _submit(self, gang: Gang, pods: list[Object]) -> None:
        gang.submitted = tuple(pod["metadata"]["uid"] for pod in pods)
        gang.attempt += 1
        try:
            await self._ranked.wait()
            specs = self._specs(gang, pods)
            self._learn_labels({key for spec in specs for key in _asked_labels(spec)})
            first, count = await self._queue.submit(specs, submission_key(gang, pods))
            gang.job_ids = tuple(range(first, first + count))
            self._await_verdict(gang, gang.job_ids)
        except QueueRefusal as refusal:
            gang.submitted = ()
            if self._crowd.slice_of(gang.key) is not None and not refusal.passing:
                self._try_all_nodes(gang)
                return
            if not refusal.passing:
                gang.refused = self._with_what_lacks(gang, str(refusal))
                self._crowd.shut_out(gang.key, by_others=any(gang.ruled_out.values()))
            self._look_at_all(self._crowd.lets_go(gang.key))
            if refusal.passing:
                await asyncio.sleep(_RETRY_S)
                self._look_at(gang)
        except (ValueError, KeyError, TypeError) as error:  # a pod that the API server let through and we cannot read
            log.warning("pod %s cannot be read", pods[0]["metadata"]["name"], exc_info=True)
            gang.submitted, gang.refused = (), f"Bireme cannot read this pod: {error}"
            self._look_at_all(self._crowd.lets_go(gang.key))
        finally:
            gang.busy = False
        if gang.job_ids and not (gang.submitted and all(uid in gang.waiting for uid in gang.submitted)):
            self._withdraw(gang)  # one left while it was being submitted

    def _with_what_lacks(self, gang: Gang, refusal: str) -> str:
        """The queue does not know what the planner does not count."""
        sight = self._crowd.sight(gang.key)
        words = sorted({word for pod in self._crowd.particular(gang.key) for word in sight.lacking(pod)})
        return f"{refusal}: no node that it may use has enough of {', '.join(words)}" if words else refusal

    def _specs(self, gang: Gang, pods: list[Object]) -> list[JobSpec]:
        """One component for each kind of pod in the gang."""
        components: dict[Needs, list[Object]] = {}
        gang.ruled_out = dict(self._crowd.ruled_out(gang.key))
        sight = self._crowd.sight(gang.key)
        for pod in pods:
            out = gang.ruled_out.get(pod["metadata"]["uid"], set())
            components.setdefault(self._needs(gang, pod, out, sight), []).append(pod)
        several, namespace = len(components) > 1, pods[0]["metadata"]["namespace"]
        return [
            job_of(
                gang,
                needs,
                members,
                offset if several else None,
                key=submission_key(gang, pods),
                account=self._accounts.get(namespace, namespace),
                qos=self._qos_of(members[0]),
                gpus_a_node=self._gpus_a_node(),
            )
            for offset, (needs, members) in enumerate(components.items())
        ]

    def _needs(self, gang: Gang, pod: Object, out: set[str], sight: Sight) -> Needs:
        """Several of a gang share what the planner does not count: on every node as few as the smallest one holds."""
        most = sight.most_a_node(pod) if gang.size != 1 else 0
        tied, preferred = volume_rules(pod, self.catalogue.stock), sight.preferences(pod)
        part = self._crowd.slice_of(gang.key)
        if part is not None:
            return needs_of(pod, self._crowd.beside(part), tied, most, preferred, part.rules)
        return needs_of(pod, out | self._crowd.full, tied, most, preferred)

    # --- those that mind each other ------------------------------------------------------------------------

    def _usable(self, pod: Object) -> Callable[[str], bool]:
        rules = own_rules(pod, volume_rules(pod, self.catalogue.stock))
        return lambda node: self._node_takes(node, rules)

    def _await_verdict(self, gang: Gang, job_ids: tuple[int, ...], times: int = _VERDICTS) -> None:
        """Others keep away from where it may come to be, until it is placed or is known to wait: but not for long, for
        a job that somebody cancels in the queue is never heard of again."""
        if self._gangs.get(gang.key) is not gang or gang.job_ids != job_ids or not self._crowd.claims(gang.key):
            return
        if self._queue.why_waiting(job_ids[0]):
            self._passed_over(gang)
        elif times:
            asyncio.get_running_loop().call_later(_VERDICT_S, self._await_verdict, gang, job_ids, times - 1)
        else:
            self._look_at_all(self._crowd.waits(gang.key))

    def _passed_over(self, gang: Gang) -> None:
        """The planner has looked at it and lets it wait."""
        if self._crowd.slice_of(gang.key) is not None:
            self._try_all_nodes(gang)
        else:
            self._look_at_all(self._crowd.waits(gang.key))

    def _try_all_nodes(self, gang: Gang) -> None:
        """Tries all nodes for a gang that found no place in the part that was left to it while others were placed."""
        self._withdraw(gang, unlucky=True)

    def _qos_of(self, pod: Object) -> str:
        named = pod["spec"].get("priorityClassName", "") or (SERVICE if is_service(pod) else "")
        return self._queue.qos_named(named)

    def _withdraw(self, gang: Gang, *, unlucky: bool = False) -> None:
        """Its pods, or what is left to them, are not what they were when it was submitted: out of the queue, and looked
        at anew. `unlucky`: it found no place in its slice."""
        if not gang.job_ids:
            gang.submitted = ()
            self._look_anew(gang, unlucky)
        elif not gang.busy:
            gang.busy = True
            self._work(self._leave_queue(gang, gang.job_ids, unlucky))

    async def _leave_queue(self, gang: Gang, job_ids: tuple[int, ...], unlucky: bool) -> None:
        """What has just been started is left alone: its pods are about to be bound, and must be in no second job."""
        try:
            out = await self._queue.withdraw(job_ids[0])
        finally:
            gang.busy = False
        if out:
            gang.job_ids, gang.submitted = (), ()
            self._look_anew(gang, unlucky)
        elif self._gangs.get(gang.key) is gang:
            self._look_at(gang)  # what came meanwhile

    def _look_anew(self, gang: Gang, unlucky: bool) -> None:
        if self._gangs.get(gang.key) is not gang:
            return
        self._look_at_all(self._crowd.lets_go(gang.key))
        if unlucky:
            self._crowd.give_all(gang.key)
        if gang.waiting:
            self._look_at(gang)

    def _take_places(self, place: Place) -> str:
        """Empty: its pods may go where the planner said; else what came in the way, and they are looked at anew."""
        waiting = [(self._pods.get(place.full_name(name)), node) for name, node in place.nodes.items()]
        places = [(pod, node) for pod, node in waiting if pod is not None and not pod["spec"].get("nodeName")]
        gang = next((self._gangs.get(self._gang_of.get(pod["metadata"]["uid"], "")) for pod, _ in places), None)
        if gang is None:
            return ""
        obstacle = self._crowd.take(gang.key, places)
        if obstacle:
            self._withdraw(gang)
        else:
            self._look_at_all(self._crowd.settled(gang.key))
        return obstacle

    # --- saying why ----------------------------------------------------------------------------------------

    def _tell_all(self) -> None:
        """Once for every new reason of a gang that waits; nothing is asked of the API server for the others."""
        self._telling = None
        waiting, known = [gang for gang in self._gangs.values() if gang.waiting], dict[str, set[str]]()
        for gang in waiting:
            self._check_neighbours(gang, known)
            why = self._why(gang)
            if why and gang.job_ids:
                self._passed_over(gang)
            if why and why != gang.told:
                gang.told = why
                self._work(self._teller.waits(list(gang.waiting.values()), gang.group, why))
        if waiting:
            self._telling = asyncio.get_running_loop().call_later(_TELL_EVERY_S, self._tell_all)

    def why_outside(self, namespace: str, name: str) -> str:
        """Why a pod is not in the queue; empty: there is no such pod of others that waits, or it was put there."""
        pod = self._pods.get(f"{namespace}/{name}")
        gang = self._gangs.get(self._gang_of.get(pod["metadata"]["uid"], "")) if pod is not None else None
        if pod is None or gang is None or gang.job_ids:
            return ""
        gates = gates_of(pod)
        return f"its scheduling gates are closed: {', '.join(gates)}" if gates else self._why(gang) or "it just came"

    def _why(self, gang: Gang) -> str:
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
