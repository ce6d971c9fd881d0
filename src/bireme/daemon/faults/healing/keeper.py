"""Carries out of the daemon what was decided about findings: the policy into the journal, drains to other schedulers,
taints to clusters of others, and news to hooks.

What is fenced `core/faults/fences` decides; a node that another scheduler looks after is drained by that scheduler,
which this tells, again and again until it has. Invariant: what it tells to undo, it has told before, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from bireme.core.faults.fences.judging import FENCING, clusters_of, why_text
from bireme.core.faults.fences.shelves import FENCES
from bireme.core.faults.healings.shelves import HEALINGS, is_policy_set, policy_of
from bireme.core.model import events as e
from bireme.core.model.finding.findings import Trouble
from bireme.core.model.healing.fences import Fence
from bireme.core.model.healing.healings import HealingLife
from bireme.core.model.healing.policy import HealingPolicy
from bireme.core.model.refusals import Caller, Refusal
from bireme.core.state.state import State
from bireme.daemon.hooks import Hook
from bireme.ports import Order
from bireme.runtime.service import Runtime

log = logging.getLogger("bireme.daemon")

_AGAIN_S = 30.0
"""So often what could not be told is told again, and what was told is compared with what is so."""


_BECAME: dict[type[e.Event], HealingLife] = {
    e.HealingApproved: HealingLife.APPROVED,
    e.HealingRefused: HealingLife.REFUSED,
    e.HealingDone: HealingLife.DONE,
    e.HealingFailed: HealingLife.FAILED,
    e.HealingUndone: HealingLife.UNDONE,
    e.HealingLapsed: HealingLife.LAPSED,
}


class HealingKeeper:
    def __init__(self, runtime: Runtime, hooks: Sequence[Hook]) -> None:
        self._cluster = runtime
        self._hooks = tuple(hooks)
        self._changed = asyncio.Event()
        self._whys: dict[str, str] = {}
        """Of each fenced node, the reason that was given."""
        self._lifted: dict[str, str] = {}
        """Nodes whose drain is to be taken back from another scheduler, with the reason that we gave."""
        self._task: asyncio.Task[None] | None = None
        self._leave: Callable[[], None] = lambda: None

    async def begin(self, policy: HealingPolicy) -> None:
        self._leave = self._cluster.subscribe(self._committed)
        self._whys = {each.place.node: each.why for each in FENCES.of(self._cluster.state).values() if not each.of_gpu}
        self._lifted = self._left_over()
        await self.set_policy(policy)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="fences")

    async def close(self) -> None:
        self._leave()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        for hook in self._hooks:
            await hook.close()

    async def set_policy(self, policy: HealingPolicy) -> None:
        """Journaled where it is another than it was."""

        def decide(state: State, now: float) -> list[e.Event]:
            news = policy_of(state) != policy or not is_policy_set(state)
            return [e.HealingPolicySet(policy)] if news else []

        await self._cluster.do("configuration", decide, own=True)

    def _left_over(self) -> dict[str, str]:
        """What a daemon before this one had lifted and may not have told."""
        state = self._cluster.state
        over = (each for each in HEALINGS.of(state).values() if each.phase is HealingLife.UNDONE)
        nodes = {each.proposal.place.node: why_text(each.proposal) for each in over if each.proposal.act in FENCING}
        return {name: why for name, why in nodes.items() if name not in FENCES.of(state)}

    # -- other schedulers ----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            try:
                await self._tell_queue()
                await self._tell_cluster()
            except (Refusal, OSError, TimeoutError) as error:
                log.error("a fence cannot be told to the cluster, and is tried again: %s", error)
            except Exception:  # a bug must not end it for all fences
                log.exception("fences could not be told to the cluster; tried again")
            with suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN_S):
                    await self._changed.wait()

    async def _tell_queue(self) -> None:
        """Another scheduler drains the nodes that are fenced, and takes back what it drained for us."""
        state, queue = self._cluster.state, self._cluster.engine.capabilities.queue
        if queue is None:
            return
        for fence in [each for each in FENCES.of(state).values() if self._is_ordered(state, each)]:
            node = state.nodes.get(fence.place.node)
            if node is not None and not fence.drained and not node.drained and queue.takes_nodes([node.name]):
                await self._order(node.name, {"state": "DRAIN", "reason": fence.why})
        for name, why in list(self._lifted.items()):
            node = state.nodes.get(name)
            if node is not None and node.drained and node.note is not None and why in node.note.text:
                await self._order(name, {"state": "RESUME"})
            self._lifted.pop(name, None)

    async def _order(self, node: str, changes: dict[str, Any]) -> None:
        queue = self._cluster.engine.capabilities.queue
        assert queue is not None
        me = Caller(os.geteuid(), os.getegid(), "bireme", admin=True)
        await queue.obey(me, Order(verb="update_nodes", target=node, changes=changes))

    @staticmethod
    def _is_ordered(state: State, fence: Fence) -> bool:
        return not fence.of_gpu and policy_of(state).orders_in(clusters_of(state, fence.place.node))

    async def _tell_cluster(self) -> None:
        """All that is fenced, whole: the cluster's side marks those nodes, and unmarks what it had marked besides."""
        fencing = self._cluster.engine.capabilities.fencing
        if fencing is None:
            return
        state = self._cluster.state
        ours = (each for each in FENCES.of(state).values() if not each.of_gpu and not self._is_ordered(state, each))
        await fencing.keep_out({each.place.node: each.why for each in ours})

    # -- hooks ---------------------------------------------------------------------------------------------------------

    def _committed(self, events: Sequence[e.Recorded]) -> None:
        for recorded in events:
            event = recorded.event
            if isinstance(event, e.FenceRaised) and not event.fence.of_gpu:
                self._whys[event.key] = event.fence.why
            elif isinstance(event, e.FenceLifted) and event.key in self._whys:
                self._lifted[event.key] = self._whys.pop(event.key)
            if isinstance(event, e.FenceRaised | e.FenceLifted):
                self._changed.set()
            told = self._told(event)
            if told is not None:
                for hook in self._hooks:
                    hook.call({**told, "at": recorded.at})

    def _told(self, event: e.Event) -> dict[str, Any] | None:
        """What hooks hear of it."""
        match event:
            case e.FindingOpened(number, trouble):
                return {"what": "finding opened", "finding": number, **_of_trouble(trouble)}
            case e.FindingChanged(trouble):
                return {"what": "finding changed", **_of_trouble(trouble)}
            case e.FindingClosed(key, why, by):
                return {"what": "finding closed", "place": key.split(" ", 1)[-1], "why": why, "by": by}
            case e.FenceRaised(fence):
                healing = fence.healing
                return {"what": "fence raised", "place": fence.key, "node": fence.place.node, "gpu": fence.place.gpu,
                        "uuid": fence.place.uuid, "why": fence.why, "healing": healing, "by": fence.by}  # fmt: skip
            case e.FenceLifted(key, why, by):
                return {"what": "fence lifted", "place": key, "why": why, "by": by}
            case e.HealingProposed(id=number, phase=phase):
                return self._of_healing(number, phase)
        became = _BECAME.get(type(event))
        if became is not None:
            return self._of_healing(event.id, became)  # type: ignore[union-attr]  # all of these have a number
        return None

    def _of_healing(self, number: int, phase: HealingLife) -> dict[str, Any] | None:
        """As it was after that event: others may have followed in the same turn."""
        healing = HEALINGS.of(self._cluster.state).get(number)
        if healing is None:
            return None
        proposal, place = healing.proposal, healing.proposal.place
        mark = next((mark for mark in reversed(healing.trail) if mark.phase is phase), healing.latest)
        return {
            "what": f"healing {phase}",
            "healing": number,
            "act": proposal.act.value,
            "place": place.key,
            "node": place.node,
            "job_id": place.job_id or None,
            "title": proposal.title,
            "why": proposal.reason,
            "said": mark.text,
            "by": mark.by or "bireme",
            "evidence": [asdict(quote) for quote in proposal.quotes],
            "findings": list(proposal.findings),
            "undo": proposal.undo,
        }


def _of_trouble(trouble: Trouble) -> dict[str, Any]:
    place = trouble.place
    return {
        "detector": trouble.detector,
        "place": place.key,
        "node": place.node,
        "gpu": place.gpu,
        "uuid": place.uuid,
        "job_id": place.job_id or None,
        "gravity": trouble.gravity.value,
        "cause": trouble.cause,
        "title": trouble.title,
        "remedy": trouble.remedy,
        "since": trouble.since,
        "evidence": [asdict(quote) for quote in trouble.quotes],
    }
