"""An engine whose work is done by agents: commands become orders to them, their events become observations.

Two engines are one of these and differ in where agents come from and how they are reached: `embedded` keeps one per
node on this machine, `kubernetes` one in every pod. What an order contains is written by `payloads`, how it gets there
is `link`'s affair, who must have answered before something counts is in `gangs`.

It remembers little, on purpose: after a restart of the daemon the runtime says again what nothing had confirmed and
the agents say again what nobody had acknowledged; together that is all it needs.

Invariant: it reports what agents said and decides nothing, except that a gang starts on all of its nodes or on none.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from msgspec.structs import replace

from bireme.agent.messages import protocol
from bireme.agent.messages.orders import (
    Acknowledge,
    Order,
    Resume,
    Signal,
    SignalStep,
    Start,
    Suspend,
    Tell,
    TellUsage,
    Terminate,
    TerminateStep,
)
from bireme.agent.messages.told import (
    Answer,
    BatchEnded,
    Cleared,
    Event,
    Launched,
    Prepared,
    Probed,
    Refused,
    StepBegan,
    StepEnded,
    Unkillable,
    Vanished,
    Welcome,
)
from bireme.core.model import commands as c
from bireme.core.model import observations as o
from bireme.core.model.cluster import ClusterConfig
from bireme.core.model.resources import ExitStatus, Usage, merge_usage
from bireme.core.model.serving.probes import Health
from bireme.engines.crew.gangs import Farewell, Gang, Next, StepStart
from bireme.engines.crew.link import AgentLink
from bireme.engines.crew.payloads import PayloadWriter
from bireme.ports import Capabilities, Further, LostBlobError, Report, StepEndpoint
from bireme.slurm.variables.allocation import Component

log = logging.getLogger("bireme.engines")

Key = tuple[int, int]
"""(job id, generation)."""

_TAKE_BACK_S = 10.0
_DONE_REMEMBERED = 10_000
_DEFAULT_PROLOG_S = 300
_NOT_ASKED = "the agent of node {} is of an earlier release and does not ask it: restart that agent when it is idle"


def answered(node: str, message: Welcome, at: float) -> o.NodeAnswered:
    """What an agent's first words say of its node."""
    asks = message.protocol >= protocol.ASKS_REPLICAS
    return o.NodeAnswered(node, message.version, message.holds, at, message.past, asks)


class Alarm(Protocol):
    def cancel(self) -> None: ...


class CrewEngine(ABC):
    """What is left to an engine of this kind: its name, its life (`start`, `stop`, `reconfigure`) and `link`."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(past=self, environments=self)

    problem = ""
    """Nodes that do not answer are reported one by one."""
    recalls: Callable[[], bool] = staticmethod(lambda: False)
    """Whether agents are to tell again how their newest jobs ended."""

    def hear_again(self) -> None:  # noqa: B027  (not every engine has whom to ask)
        """See `ports.RemembersPast`; for an engine whose agents remember nothing there is nothing to ask."""

    def __init__(self, config: ClusterConfig, payloads: PayloadWriter) -> None:
        self._config = config
        self._payloads = payloads
        self._report: Report = _drop
        self._gangs: dict[Key, Gang] = {}
        self._deadlines: dict[Key, Alarm] = {}
        self._farewells: dict[Key, Farewell] = {}
        self._batches: dict[Key, Start] = {}
        """The `start` orders of gangs whose nodes are being prepared."""
        self._nodes_of: dict[Key, set[str]] = {}
        """Where something about this start was ordered or heard."""
        self._steps: dict[Key, dict[int, StepStart]] = {}
        self._generations: dict[int, int] = {}
        """The newest start of each job that was ordered or heard of."""
        self._done: dict[Key, None] = {}
        """Starts that were acknowledged lately: what an agent still says of them needs no one's attention."""
        self._components: dict[int, list[Component]] = {}
        """Of the heterogeneous jobs that start in the current `send`, by leader."""
        self._mates: dict[Key, set[Key]] = {}
        """Leaders of heterogeneous jobs -> the other components: their script starts when all of these are there."""
        self._held_back: set[Key] = set()
        """Leaders whose own nodes are prepared."""
        self._replicas: set[Key] = set()
        """Starts that are replicas of services."""

    @property
    def about(self) -> str:
        return ""

    def tell_further(self, further: Further) -> None:
        """See `ports.WritesEnvironments`."""
        self._payloads.further = further

    # --- time: the simulator has its own -----------------------------------------------------------------------

    def now(self) -> float:
        return time.time()

    def later(self, delay_s: float, action: Callable[[], object]) -> Alarm:
        return asyncio.get_running_loop().call_later(delay_s, action)

    @abstractmethod
    def link(self, node: str, key: Key) -> AgentLink:
        """The connection to the agent that holds this start of a job on this node; made when there is none."""

    def outside_address(self, node: str, key: Key) -> str:
        """Where users of the daemon's machine find that agent."""
        return self.link(node, key).address

    def replica_address(self, node: str, key: Key, found: str) -> str:
        """Where the router reaches a service's replica on this node, whose agent found it at `found` (empty: it was
        not asked over its port)."""
        return found

    def inside_address(self, node: str, key: Key) -> str:
        """Where a caller inside the job finds the agent of this start on this node; empty: where everybody does."""
        return ""

    # --- the part of ports.Engine that all of them share ---------------------------------------------------

    def send(self, commands: Sequence[c.Command]) -> None:
        self._components = _het_components(commands)
        for command in commands:
            try:
                getattr(self, _OBEY[type(command)])(command)
            except Exception as error:
                log.exception("command failed: %s", type(command).__name__)
                self._failed(command, error)

    def step_endpoints(self, job_id: int, step_id: int) -> tuple[StepEndpoint, ...]:
        key = (job_id, self._generations.get(job_id, 0))
        start = self._steps.get(key, {}).get(step_id)
        # A step from before a restart of the daemon is on some of the job's nodes.
        nodes = start.nodes if start is not None and start.nodes else sorted(self._nodes_holding(job_id))
        return tuple(
            StepEndpoint(node, self.outside_address(node, key), self.inside_address(node, key)) for node in nodes
        )

    async def live_usage(self, job_id: int) -> dict[str, Any]:
        parts: dict[str, list[Usage]] = {}
        for _, answer in await self._ask_nodes(job_id):
            for label, usage in answer.usage.items():
                parts.setdefault(label, []).append(usage)
        return {label: _usage_mapping(merge_usage(usages)) for label, usages in parts.items()}

    async def awaited_images(self, job_id: int) -> dict[str, tuple[str, ...]]:
        return {node: answer.awaited for node, answer in await self._ask_nodes(job_id) if answer.awaited}

    async def _ask_nodes(self, job_id: int) -> list[tuple[str, Answer]]:
        """What those of its nodes say that answer."""
        nodes = sorted(self._nodes_holding(job_id))
        key = (job_id, self._generations.get(job_id, 0))
        answers = await asyncio.gather(*(self.link(node, key).ask(TellUsage(job=job_id, id=0)) for node in nodes))
        return [(node, answer) for node, answer in zip(nodes, answers) if answer is not None]

    def acknowledge(self, job_id: int, generation: int) -> None:
        key = (job_id, generation)
        for node in sorted(self._nodes_of.pop(key, ())):
            link = self.link(node, key)
            link.confirm(("start", key))
            link.confirm(("pace", key))
            link.confirm(("tell", key))
            for step_id in self._steps.get(key, ()):
                link.confirm(("step", (*key, step_id)))
                link.confirm(("end step", (*key, step_id)))
            self._ack(node, key)
        self._forget(key)
        self._done[key] = None
        if len(self._done) > _DONE_REMEMBERED:
            del self._done[next(iter(self._done))]

    def _ack(self, node: str, key: Key) -> None:
        self.link(node, key).send(Acknowledge(job=key[0], gen=key[1]))

    # --- obeying -------------------------------------------------------------------------------------------

    def _launch_job(self, command: c.LaunchJob) -> None:
        job, allocation = command.job, command.allocation
        key = (job.id, allocation.generation)
        self._touch(key, allocation.node_names)
        prepares = {share.node: self._payloads.prepare(job, allocation, share) for share in allocation.shares}
        start = None
        components = self._components.get(job.id, ())
        if job.runs_script:
            start = self._payloads.start(job, allocation, prepares[allocation.first_node], components)
        if job.spec.replica is not None:
            self._replicas.add(key)
        if mates := {(other.id, held.generation) for other, held in components} - {key}:
            self._mates[key] = mates
        if start is not None and len(allocation.shares) == 1 and not mates:
            self._order(allocation.first_node, ("start", key), replace(start, alone=True))
        else:
            if start is not None:
                self._batches[key] = start
            for node, prepare in prepares.items():
                self._order(node, ("start", key), prepare)
        self._gangs[key] = Gang(allocation.node_names, start is not None)
        self._set_deadline(key, self._launch_patience_s())

    def _terminate_job(self, command: c.TerminateJob) -> None:
        key = (command.job_id, command.generation)
        gang = self._gangs.pop(key, None)
        self._drop_deadline(key)
        self._done.pop(key, None)  # whoever asks is to hear the answer, also of what was acknowledged already
        nodes = sorted({*command.nodes, *(gang.nodes if gang else ())})
        self._touch(key, nodes)
        farewell = self._farewells.setdefault(key, Farewell())
        farewell.waiting.update(nodes)
        farewell.given_up.update(command.given_up)
        for node in nodes:
            self.link(node, key).confirm(("start", key))
            for step_id in self._steps.get(key, ()):
                self.link(node, key).confirm(("step", (*key, step_id)))
            self._terminate_on(node, key, command.grace_s, command.cause)
        if farewell.over(partial(self._is_deaf, key)):
            self._later(self._said_goodbye(key, farewell, self.now()))

    def _terminate_on(self, node: str, key: Key, grace_s: int, cause: str = "") -> None:
        self._order(node, ("end", key), Terminate(job=key[0], gen=key[1], grace_s=grace_s, cause=cause))

    def _signal_job(self, command: c.SignalJob) -> None:
        signal = Signal(job=command.job_id, gen=command.generation, signal=command.signal, scope=command.scope)
        self._tell(command.nodes, signal)

    def _tell_job(self, command: c.TellJob) -> None:
        """Said again after every reconnect: agents write it once."""
        key = (command.job_id, command.generation)
        for node in command.nodes:
            self._order(node, ("tell", key), Tell(job=key[0], gen=key[1], text=command.text, at=command.at))

    def _suspend_job(self, command: c.SuspendJob) -> None:
        self._pace(command, Suspend)

    def _resume_job(self, command: c.ResumeJob) -> None:
        self._pace(command, Resume)

    def _pace(self, command: c.SuspendJob | c.ResumeJob, word: type[Suspend] | type[Resume]) -> None:
        """Said again after every reconnect, the last word only: agents do not confirm it, and it does no harm."""
        key = (command.job_id, command.generation)
        for node in command.nodes:
            self._order(node, ("pace", key), word(job=key[0], gen=key[1]))

    def _launch_step(self, command: c.LaunchStep) -> None:
        step, key = command.step, (command.step.job_id, command.allocation.generation)
        start = self._step_start(key, step.id)
        start.nodes = tuple(node.node for node in step.nodes)
        start.began.clear()  # ordered again: it is confirmed again
        for node, order in self._payloads.step(command.job, command.allocation, step):
            self._order(node, ("step", (*key, step.id)), order)

    def _step_start(self, key: Key, step_id: int) -> StepStart:
        return self._steps.setdefault(key, {}).setdefault(step_id, StepStart())

    def _signal_step(self, command: c.SignalStep) -> None:
        step, number = command.step_id, command.signal
        self._tell(command.nodes, SignalStep(job=command.job_id, gen=command.generation, step=step, signal=number))

    def _terminate_step(self, command: c.TerminateStep) -> None:
        key = (command.job_id, command.generation)
        order = TerminateStep(
            job=key[0], gen=key[1], step=command.step_id, grace_s=command.grace_s, cause=command.cause
        )
        self._step_start(key, command.step_id)  # so that it is known when the job's orders are forgotten
        for node in command.nodes:
            self._order(node, ("end step", (*key, command.step_id)), order)

    def _tell(self, nodes: Iterable[str], order: Signal | SignalStep) -> None:
        for node in nodes:
            self.link(node, order.key).send(order)

    def _order(self, node: str, key: tuple[str, tuple[int, ...]], order: Order) -> None:
        job_id, generation = key[1][:2]
        self.link(node, (job_id, generation)).order(key, order)

    def _failed(self, command: c.Command, error: Exception) -> None:
        """A command that could not even be written down: a blob is missing, a node unknown."""
        if isinstance(command, c.LaunchJob):
            key = (command.job.id, command.allocation.generation)
            self._drop_deadline(key)
            self._gangs.pop(key, None)
            lost = isinstance(error, LostBlobError)
            reason = f"{_lost_part(command, error)}: {error}" if lost else f"{type(error).__name__}: {error}"
            self._later(o.JobRefused(*key, reason, self.now(), permanent=True, fatal=lost))
        elif isinstance(command, c.LaunchStep):
            step, status = command.step, ExitStatus(code=1)
            for node in step.nodes:
                about = (step.job_id, command.allocation.generation, step.id)
                self._later(o.StepNodeFinished(*about, node.node, status, Usage(), self.now()))

    def _later(self, observation: o.Observation) -> None:
        """Never from within `send`: the runtime is in the middle of its turn."""
        self.later(0.0, partial(self._report, [observation]))

    # --- hearing -------------------------------------------------------------------------------------------

    def _heard(self, node: str, events: Sequence[Event]) -> None:
        seen: list[o.Observation] = []
        for event in events:
            key = event.key
            if key in self._done and not self.recalls():  # after a loss one node may know what another does not
                self.link(node, key).confirm(("end", key))
                self._ack(node, key)
                continue
            self._touch(key, (node,))
            getattr(self, f"_on_{event.__struct_config__.tag}")(node, key, event, seen)
        if seen:
            self._report(seen)

    def _on_prepared(self, node: str, key: Key, event: Prepared, seen: list[o.Observation]) -> None:
        self.link(node, key).confirm(("start", key))
        gang = self._gangs.get(key)
        if gang is not None:
            self._advance(key, gang, gang.prepared(node), event.at, seen)

    def _on_launched(self, node: str, key: Key, event: Launched, seen: list[o.Observation]) -> None:
        self.link(node, key).confirm(("start", key))
        self._gangs.pop(key, None)
        self._drop_deadline(key)
        self._batches.pop(key, None)
        seen.append(o.JobLaunched(*key, event.at))
        if key in self._replicas and not self.link(node, key).asks_replicas:
            seen.append(o.ReplicaProbed(*key, Health.LOADING, _NOT_ASKED.format(node), event.at))

    def _on_refused(self, node: str, key: Key, event: Refused, seen: list[o.Observation]) -> None:
        self.link(node, key).confirm(("start", key))
        self.link(node, key).confirm(("end", key))
        gang = self._gangs.get(key)
        if gang is None:
            self._on_cleared(node, key, Cleared(*key, at=event.at), seen)
            return
        step = gang.refused(node, f"{node}: {event.reason}", event.prolog_failed, event.short)
        self._advance(key, gang, step, event.at, seen)

    def _on_batch_ended(self, node: str, key: Key, event: BatchEnded, seen: list[o.Observation]) -> None:
        self.link(node, key).confirm(("start", key))
        if event.note:
            log.warning("job %d on node %s: %s", key[0], node, event.note)
        how = (event.cleared, event.note, event.ordered, event.label)
        seen.append(o.BatchFinished(*key, event.status, event.at, event.usage, *how))

    def _on_cleared(self, node: str, key: Key, event: Cleared, seen: list[o.Observation]) -> None:
        self.link(node, key).confirm(("end", key))
        gang = self._gangs.get(key)
        if gang is not None:
            self._advance(key, gang, gang.cleared(node), event.at, seen)
        farewell = self._farewells.get(key)
        if farewell is not None:
            farewell.cleared(node, epilog_failed=bool(event.epilog_failed))
            if farewell.over(partial(self._is_deaf, key)):
                seen.append(self._said_goodbye(key, farewell, event.at))

    def _said_goodbye(self, key: Key, farewell: Farewell, at: float) -> o.JobCleared:
        """Nodes that were given up say theirs when they are back: until then it is remembered."""
        if not farewell.waiting:
            del self._farewells[key]
        return o.JobCleared(*key, at, farewell.epilog_failed_on, tuple(sorted(farewell.waiting)))

    def _is_deaf(self, key: Key, node: str) -> bool:
        return not self.link(node, key).connected.is_set()

    def _on_vanished(self, node: str, key: Key, event: Vanished, seen: list[o.Observation]) -> None:
        self.link(node, key).confirm(("start", key))
        self._gangs.pop(key, None)
        self._drop_deadline(key)
        seen.append(o.JobVanished(*key, node, event.reason, event.at))

    def _on_unkillable(self, node: str, key: Key, event: Unkillable, seen: list[o.Observation]) -> None:
        seen.append(o.JobUnkillable(*key, node, event.reason, event.at))

    def _on_probed(self, node: str, key: Key, event: Probed, seen: list[o.Observation]) -> None:
        address = self.replica_address(node, key, event.address)
        seen.append(o.ReplicaProbed(*key, event.health, event.why, event.at, address))

    def _on_step_began(self, node: str, key: Key, event: StepBegan, seen: list[o.Observation]) -> None:
        self.link(node, key).confirm(("step", (*key, event.step)))
        if self._step_start(key, event.step).node_began(node):
            seen.append(o.StepBegan(*key, event.step, event.at))

    def _on_step_ended(self, node: str, key: Key, event: StepEnded, seen: list[o.Observation]) -> None:
        self.link(node, key).confirm(("step", (*key, event.step)))
        self.link(node, key).confirm(("end step", (*key, event.step)))
        if event.note:
            log.warning("step %d.%d on node %s: %s", key[0], event.step, node, event.note)
        seen.append(o.StepNodeFinished(*key, event.step, node, event.status, event.usage, event.at, event.failed))

    # --- gangs ---------------------------------------------------------------------------------------------

    def _advance(self, key: Key, gang: Gang, step: Next, at: float, seen: list[o.Observation]) -> None:
        if step is Next.START_BATCH:
            self._held_back.add(key)
            self._start_scripts()
        elif step is Next.TAKE_BACK:
            for node in sorted(gang.to_clear):
                self.link(node, key).confirm(("start", key))
                self._terminate_on(node, key, 0)
            self._set_deadline(key, _TAKE_BACK_S)
        elif step in (Next.LAUNCHED, Next.REFUSED):
            del self._gangs[key]
            self._drop_deadline(key)
            self._batches.pop(key, None)
            if step is Next.LAUNCHED:
                seen.append(o.JobLaunched(*key, at))
                self._start_scripts()
            else:
                left = tuple(sorted(gang.given_up))
                failed_on, short_on = gang.prolog_failed_on, gang.short_on
                refused = o.JobRefused(*key, gang.problem, at, False, failed_on, left, gang.passing, short_on=short_on)
                seen.append(refused)

    def _start_scripts(self) -> None:
        """Of gangs whose nodes are all prepared, and of whose job no other component is still on its way."""
        for key in [key for key in self._held_back if not self._mates.get(key, set()) & self._gangs.keys()]:
            self._held_back.discard(key)
            if key in self._gangs:
                self._order(self._gangs[key].nodes[0], ("start", key), self._batches.pop(key))

    def _launch_patience_s(self) -> float:
        settings = self._config.settings
        if not settings.prolog:
            return settings.batch_start_timeout_s
        return settings.batch_start_timeout_s + (settings.prolog_epilog_timeout_s or _DEFAULT_PROLOG_S)

    def _set_deadline(self, key: Key, delay_s: float) -> None:
        self._drop_deadline(key)
        self._deadlines[key] = self.later(delay_s, partial(self._out_of_time, key))

    def _drop_deadline(self, key: Key) -> None:
        deadline = self._deadlines.pop(key, None)
        if deadline is not None:
            deadline.cancel()

    def _out_of_time(self, key: Key) -> None:
        gang = self._gangs.get(key)
        if gang is None:
            return
        deaf = {node for node in gang.nodes if self._is_deaf(key, node)}
        if gang.problem:  # it was being taken back: who has not answered by now is told when it comes back
            deaf = set(gang.to_clear)
        seen: list[o.Observation] = []
        step = gang.timed_out(deaf)
        for node in sorted(deaf):
            self.link(node, key).confirm(("start", key))
            self._terminate_on(node, key, 0)
        self._advance(key, gang, step, self.now(), seen)
        if seen:
            self._report(seen)

    # --- memory --------------------------------------------------------------------------------------------

    def _touch(self, key: Key, nodes: Iterable[str]) -> None:
        """Something about this start happens on these nodes."""
        self._nodes_of.setdefault(key, set()).update(nodes)
        if self._generations.get(key[0], 0) < key[1]:
            self._generations[key[0]] = key[1]

    def _nodes_holding(self, job_id: int) -> set[str]:
        return self._nodes_of.get((job_id, self._generations.get(job_id, 0)), set())

    def _forget(self, key: Key) -> None:
        self._gangs.pop(key, None)
        self._batches.pop(key, None)
        self._mates.pop(key, None)
        self._held_back.discard(key)
        self._replicas.discard(key)
        self._farewells.pop(key, None)
        self._steps.pop(key, None)
        self._drop_deadline(key)
        if self._generations.get(key[0]) == key[1]:
            del self._generations[key[0]]


_OBEY = {
    c.LaunchJob: "_launch_job",
    c.TerminateJob: "_terminate_job",
    c.SignalJob: "_signal_job",
    c.TellJob: "_tell_job",
    c.SuspendJob: "_suspend_job",
    c.ResumeJob: "_resume_job",
    c.LaunchStep: "_launch_step",
    c.SignalStep: "_signal_step",
    c.TerminateStep: "_terminate_step",
}


def _lost_part(command: c.LaunchJob, error: Exception) -> str:
    spec = command.job.spec
    return "its script is lost" if spec.script and spec.script in str(error) else "its environment is lost"


def _drop(_observations: Sequence[o.Observation]) -> None:
    """Before `start` there is nobody to tell."""


def _het_components(commands: Sequence[c.Command]) -> dict[int, list[Component]]:
    """The components of a heterogeneous job are launched together; the leader's script is told about all."""
    found: dict[int, list[Component]] = {}
    for command in commands:
        if isinstance(command, c.LaunchJob) and command.job.het_job_id is not None:
            found.setdefault(command.job.het_job_id, []).append((command.job, command.allocation))
    for components in found.values():
        components.sort(key=lambda component: component[0].spec.het_component or 0)
    return found


def _usage_mapping(usage: Usage) -> dict[str, Any]:
    return {name: getattr(usage, name) for name in Usage.__dataclass_fields__}
