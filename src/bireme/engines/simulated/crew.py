"""The crew engine over simulated agents: the code that runs this machine's nodes and Kubernetes' pods, without either.

`Fleet` is the outside world: agents, and whether they can be reached. `SimulatedCrew` is one daemon's engine: the real
`CrewEngine` and the real `AgentLink`s, on connections that take their time. Daemons come and go, the fleet stays.

Invariant: what is said on one connection arrives in order; what was on its way up when it broke is lost, and what a
daemon had written before it died still arrives.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any, cast

from msgspec.structs import asdict

from bireme.agent.messages.lines import decode_line, encode_line
from bireme.agent.messages.orders import Batch, Prepare, Share, Start, StartStep
from bireme.agent.messages.protocol import Message
from bireme.agent.messages.told import Welcome
from bireme.core.model import observations as o
from bireme.core.model.cluster import ClusterConfig
from bireme.core.model.jobs import Job
from bireme.core.model.resources import Allocation, NodeShare
from bireme.core.model.steps import Step
from bireme.engines.crew.engine import Alarm, CrewEngine, Key, answered
from bireme.engines.crew.link import AgentLink
from bireme.engines.crew.payloads import PayloadWriter
from bireme.engines.simulated.agents import SimulatedAgent, Witness, behaviour_of_replica
from bireme.engines.simulated.clock import VirtualClock
from bireme.ports import Report
from bireme.slurm.variables.allocation import Component
from bireme.slurm.variables.cluster import ClusterFacts

SILENT_AFTER_S = 5.0
"""So long a node may be out of reach before it is reported, as with real links."""
RECONNECT_S = 0.2


class Fleet:
    """The nodes of one cluster, whoever commands them."""

    def __init__(self, clock: VirtualClock, witness: Witness, seed: str) -> None:
        self.clock = clock
        self.agents: dict[str, SimulatedAgent] = {}
        self.skew_s = 0.0
        """How far the machines' clocks are ahead of the time that really passes."""
        self.latency_s = 0.002
        """Messages take up to so long."""
        self._unreachable: set[str] = set()
        self._heard_since: dict[str, float] = {}
        """Of the nodes that have a connection: since when."""
        self._witness = witness
        self._random = random.Random(seed)
        self._crew: SimulatedCrew | None = None

    def wall(self) -> float:
        return self.clock.now() + self.skew_s

    def delay_s(self) -> float:
        return self._random.random() * self.latency_s

    def follow(self, config: ClusterConfig) -> None:
        """New nodes get an agent; nodes that left keep theirs."""
        for node in config.nodes:
            if node.name not in self.agents:
                self.agents[node.name] = SimulatedAgent(node.name, self.clock, self.wall, self._witness)

    # -- who can be reached --------------------------------------------------------------------------------------------

    def attach(self, crew: SimulatedCrew | None) -> None:
        """A daemon begins (None: it died)."""
        self._crew = crew
        self._heard_since.clear()
        for node in self.agents if crew is not None else ():
            self._reconnect(node)

    def reachable(self, node: str) -> bool:
        return node not in self._unreachable

    def heard(self, node: str, *, still: bool = True) -> None:
        """The daemon has a connection to it from now on, or none."""
        if still:
            self._heard_since[node] = self.clock.now()
        else:
            self._heard_since.pop(node, None)

    def away_since(self, node: str, at: float) -> bool:
        """Whether the daemon was without a connection to it at some time since then."""
        return self._heard_since.get(node, inf) >= at

    def cut_off(self, node: str) -> None:
        """Nobody can reach it; what runs there runs on."""
        self._unreachable.add(node)
        if self._crew is not None:
            self._crew.lost(node)

    def restore(self, node: str) -> None:
        self._unreachable.discard(node)
        self._reconnect(node)

    def restart(self, node: str, *, remembers: bool) -> None:
        """Restarts a node: its agent dies with everything on it, and another takes its place at once."""
        self.agents[node].dies(remembers=remembers)
        if self._crew is not None:
            self._crew.lost(node)
        self._reconnect(node)

    def break_connection(self, node: str) -> None:
        """Breaks a node's connection, which is made again: what was not confirmed is said again, on both sides."""
        if self._crew is not None:
            self._crew.lost(node)
        self._reconnect(node)

    def _reconnect(self, node: str) -> None:
        crew = self._crew

        def try_now() -> None:
            if crew is not None and self._crew is crew and self.reachable(node):
                crew.connect(node)

        self.clock.call_at(self.clock.now() + RECONNECT_S * self._random.random(), try_now)


class Connection:
    """Between one link and one agent; looks to the link like a transport."""

    def __init__(self, crew: SimulatedCrew, fleet: Fleet, link: AgentLink, agent: SimulatedAgent) -> None:
        self._crew = crew
        self._fleet = fleet
        self._link = link
        self._agent = agent
        self._down_at = self._up_at = 0.0
        self.broken = False
        self.mute = False
        """The daemon is dead: nothing more is written, what was written arrives."""

    def begin(self) -> None:
        self._link.made(cast(Any, self))
        self._agent.connected(self.up, recall=self._crew.recalls())

    def end(self) -> None:
        """The network is gone: what was on its way is lost, both ways."""
        self.broken = self.mute = True
        self._agent.disconnected(self.up)

    def write(self, data: bytes) -> None:
        if self.mute or not self._crew.may_write():
            return
        self._down_at = max(self._down_at, self._fleet.clock.now() + self._fleet.delay_s())
        self._fleet.clock.call_at(self._down_at, lambda: None if self.broken else self._agent.obey(decode_line(data)))

    def up(self, message: Message) -> None:
        line = encode_line(message)
        self._up_at = max(self._up_at, self._fleet.clock.now() + self._fleet.delay_s())
        self._fleet.clock.call_at(self._up_at, lambda: None if self.mute else self._link.received([line]))


class SimulatedCrew(CrewEngine):
    """A `ports.Engine`."""

    name = "simulated crew"

    def __init__(self, fleet: Fleet, config: ClusterConfig) -> None:
        super().__init__(config, SimulatedPayloads(config))
        self._fleet = fleet
        self._links: dict[str, AgentLink] = {}
        self._connections: dict[str, Connection] = {}
        self._dead = False
        self._writes_left: int | None = None
        fleet.follow(config)

    # -- ports.Engine ----------------------------------------------------------------------------------------------

    async def start(self, report: Report) -> None:
        self.begin(report)

    def begin(self, report: Report) -> None:
        self._report = report
        self._fleet.attach(self)
        for node in self._fleet.agents:
            self._silent_unless_it_answers(node)

    async def stop(self) -> None:
        self.die()

    async def end_jobs(self, grace_s: float) -> None:
        for agent in self._fleet.agents.values():
            agent.dies(remembers=False)

    def reconfigure(self, config: ClusterConfig) -> None:
        before = {node.name for node in self._config.nodes}
        self._config = config
        self._fleet.follow(config)
        for node in config.nodes:
            if node.name not in before:
                self._fleet.break_connection(node.name)

    # -- CrewEngine ------------------------------------------------------------------------------------------------

    def hear_again(self) -> None:
        for node in self._fleet.agents:
            self._fleet.break_connection(node)

    def now(self) -> float:
        return self._fleet.wall()

    def later(self, delay_s: float, action: Callable[[], object]) -> Alarm:
        alarm = VirtualAlarm(self, action)
        self._fleet.clock.call_at(self._fleet.clock.now() + delay_s, alarm.ring)
        return alarm

    def link(self, node: str, key: Key) -> AgentLink:
        return self._link(node)

    def _link(self, node: str) -> AgentLink:
        if node not in self._links:
            self._links[node] = AgentLink(
                node,
                f"simulated:{node}",
                start_agent=_nobody_starts,
                on_welcome=self._welcomed,
                on_events=self._heard,
                on_silent=self._silent,
            )
        return self._links[node]

    # -- connections -----------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return not self._dead

    @property
    def unconfirmed(self) -> int:
        """Orders that some agent has not answered yet."""
        return sum(len(link._orders) for link in self._links.values())

    def die(self) -> None:
        """The daemon's process is gone: it hears and says nothing more."""
        self._dead = True
        for connection in self._connections.values():
            connection.mute = True
        self._fleet.attach(None)

    def mute_after(self, writes: int) -> None:
        """Lets an agent that is about to die get so many more messages out."""
        self._writes_left = writes

    def may_write(self) -> bool:
        if self._writes_left is not None:
            self._writes_left -= 1
        return self._writes_left is None or self._writes_left >= 0

    def connect(self, node: str) -> None:
        if node in self._connections:
            self._connections[node].end()
        connection = Connection(self, self._fleet, self._link(node), self._fleet.agents[node])
        self._connections[node] = connection
        connection.begin()

    def lost(self, node: str) -> None:
        """The connection broke; after a while without another the node is silent."""
        connection = self._connections.pop(node, None)
        if connection is None:
            return
        connection.end()
        self._fleet.heard(node, still=False)
        self._link(node).lost()
        self._silent_unless_it_answers(node)

    def _silent_unless_it_answers(self, node: str) -> None:
        self.later(SILENT_AFTER_S, lambda: self._silent(node, "its agent does not answer"))

    def _silent(self, node: str, reason: str) -> None:
        if not self._link(node).connected.is_set():
            self._report([o.NodeSilent(node, reason, self.now())])

    def _welcomed(self, node: str, message: Welcome) -> None:
        self._fleet.heard(node)
        for key in message.holds:
            self._touch(key, (node,))
        self._report([answered(node, message, self.now())])


class VirtualAlarm:
    def __init__(self, crew: SimulatedCrew, action: Callable[[], object]) -> None:
        self._crew = crew
        self._action: Callable[[], object] | None = action

    def cancel(self) -> None:
        self._action = None

    def ring(self) -> None:
        if self._action is not None and self._crew.alive:
            self._action()


class PlayedShare(Share, kw_only=True):
    """A share of a node with its devices: name, type, count, indices and parts of each kind."""

    gres: list[tuple[Any, ...]]


class PlayedPrepare(Prepare, tag="prepare", kw_only=True):
    """`behaviour`: what the job will do (`agents.read_behaviour`)."""

    behaviour: str
    gang: tuple[str, ...]


class PlayedStart(Start, tag="start", kw_only=True):
    behaviour: str
    gang: tuple[str, ...]


class PlayedStep(StartStep, tag="step", kw_only=True):
    behaviour: str


class SimulatedPayloads(PayloadWriter):
    """What simulated agents need to know: what the job was given, and what it will do."""

    def __init__(self, config: ClusterConfig) -> None:
        super().__init__(Path("/"), config, NoBlobs())

    def prepare(self, job: Job, allocation: Allocation, share: NodeShare) -> PlayedPrepare:
        gres = [(gres.name, gres.type, gres.count, gres.indices, gres.parts) for gres in share.gres]
        return PlayedPrepare(
            job=job.id,
            gen=allocation.generation,
            uid=job.spec.owner.uid,
            gid=job.spec.owner.gid,
            label=job.label,
            share=PlayedShare(cpu_ids=share.cpu_ids, memory_mib=share.memory_mib, gres=gres),
            gang=allocation.node_names,
            behaviour=_behaviour(job),
        )

    def start(self, job: Job, allocation: Allocation, prepare: Prepare, components: Sequence[Component]) -> Start:
        batch = Batch(script="", env={}, cwd="/", stdout="")
        return PlayedStart(**asdict(prepare), batch=batch, replica=job.spec.replica)

    def step(self, job: Job, allocation: Allocation, step: Step) -> Iterator[tuple[str, StartStep]]:
        order = PlayedStep(
            job=job.id,
            gen=allocation.generation,
            step=step.id,
            tasks=[],
            env={},
            cwd="/",
            behaviour=step.spec.name,
        )
        return iter([(node.node, order) for node in step.nodes])

    def reconfigure(self, config: ClusterConfig, facts: ClusterFacts | None) -> None:
        """Nothing of what is said here depends on the configuration."""


def _behaviour(job: Job) -> str:
    of = job.spec.replica
    return job.spec.comment if of is None else behaviour_of_replica(job.spec.comment, of.number)


class NoBlobs:
    def put(self, data: bytes, uid: int | None = None) -> str:
        raise NotImplementedError("simulated jobs have no files")

    def get(self, blob_id: str) -> bytes:
        raise NotImplementedError("simulated jobs have no files")


async def _nobody_starts(node: str) -> None:
    """Agents of a fleet start by themselves."""
