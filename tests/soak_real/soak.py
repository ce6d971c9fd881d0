"""Rounds of a soak: jobs come while things are killed; then peace, in which every job must end; then the rules.

One cluster serves all rounds, so that its journal grows as one does. Invariant: a round that broke a rule ends the
soak with the story: what broke, who was killed lately, what the jobs wrote, what the journal says of them.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from tests.soak_real import jobs as soak_jobs
from tests.soak_real.jobs import LOCKS, LOG, MEMBERS, RESERVATION, RESERVED_NODE, SCRIPT, SoakJob
from tests.soak_real.kills import Killer
from tests.soak_real.people import People
from tests.soak_real.witness import FINAL, Judge, Line, held_locks, read_log, strays
from tests.support.cluster import Cluster, virtual_nodes

from bireme.client.sdk import Client

KILLS_A_ROUND = 8
PEACE_S = 120.0
"""Nothing moved for so long: nothing will."""
GONE_S = 20.0
FIELDS = "job_id,array_job_id,array_task_id,comment,state,restarts,exit_code,reason,held_by,node_list"


@dataclass(slots=True)
class Figures:
    rounds: int = 0
    moments: int = 0
    victims: Counter[str] = field(default_factory=Counter)
    jobs: int = 0
    doubtful: int = 0
    starts: int = 0
    restarts: int = 0
    states: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        killed = ", ".join(
            f"{count} of {'the ' if who == 'daemon' else ''}{who}" for who, count in self.victims.items()
        )
        ends = ", ".join(f"{count} {state}" for state, count in self.states.most_common())
        return (
            f"{self.moments} kills ({self.victims.total()} processes: {killed}) in {self.rounds} rounds; "
            f"{self.jobs} jobs ({self.doubtful} never answered), {self.starts} starts, {self.restarts} restarts; {ends}"
        )


class Broken(AssertionError):  # noqa: N818  (named for what happened)
    """Rules were broken; says which, and everything that is known about it."""


class Soak:
    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.seed = seed
        self.dice = random.Random(f"soak {seed}")
        self.killer = Killer(cluster, random.Random(f"kills {seed}"))
        self.figures = Figures()
        self._first_line = 0
        self._prepare()

    def _prepare(self) -> None:
        work = self.cluster.work
        (work / "job.sh").write_text(SCRIPT)
        (work / LOCKS).mkdir(exist_ok=True)
        self.cluster.run(
            "scontrol", "create", "reservation", f"ReservationName={RESERVATION}", "StartTime=now",
            "Duration=UNLIMITED", f"Nodes={RESERVED_NODE}", f"Accounts={MEMBERS}",
        )  # fmt: skip

    def round(self, kills: int = KILLS_A_ROUND) -> None:
        """Raises Broken."""
        self.figures.rounds += 1
        prefix = f"{self.seed}-{self.figures.rounds}"
        people = [
            People(self.cluster, f"{prefix}{name}", f"{prefix}{name}", node)
            for name, node in (("a", "n1"), ("b", "n2"))
        ]
        for one in people:
            one.start()
        for _ in range(kills):
            self.killer.strike()
        for one in people:
            one.ended.set()
        for one in people:
            one.join(PEACE_S)
            if one.is_alive() or one.failure is not None:
                raise Broken(f"somebody could not go on: {one.failure!r}{self.cluster.log_tail()}")
        asked = [job for one in people for job in one.jobs]
        drained = [window for one in people for window in one.drained]
        records = self._peace(asked)
        self._judge(asked, records, drained)

    def _peace(self, asked: Sequence[SoakJob]) -> list[dict[str, Any]]:
        """Every job comes to its end; returns what the cluster says of them."""
        tokens = {job.token for job in asked}
        moved_at, before = time.monotonic(), ""
        while True:
            with Client(str(self.cluster.home), patience_s=30.0) as client:
                records = [each for each in client.jobs(fields=FIELDS) if each["comment"] in tokens]
                self._release_doubtful(client, asked, records)
            left = [each for each in records if each["state"] not in FINAL]
            if not left:
                return records
            now = str(records)
            if now != before:
                moved_at, before = time.monotonic(), now
            if time.monotonic() - moved_at > PEACE_S:
                raise Broken(
                    self._story([f"never ended: {each}" for each in left], [str(each["job_id"]) for each in left])
                )
            time.sleep(0.2)

    def _release_doubtful(self, client: Client, asked: Sequence[SoakJob], records: Sequence[dict[str, Any]]) -> None:
        """Held jobs of which nobody knew that they were accepted."""
        doubtful = {job.token for job in asked if not job.job_id}
        for record in records:
            if record["comment"] in doubtful and record["held_by"]:
                with (self.cluster.work / LOG).open("a") as log:
                    log.write(f"release {record['comment']}\n")
                client.release(record["job_id"])

    def _judge(
        self,
        asked: Sequence[SoakJob],
        records: Sequence[dict[str, Any]],
        drained: Sequence[tuple[str, float, float]],
    ) -> None:
        lines = read_log(self.cluster.work / LOG, self._first_line)
        self._first_line += len(lines)
        judge = Judge(asked, lines, records)
        broken = judge.broken(drained, self._stories_near(lines, drained))
        broken += self._left_behind()
        self._count(asked, records, lines)
        if broken:
            ids = [str(record["job_id"]) for record in records if any(str(record["comment"]) in one for one in broken)]
            raise Broken(self._story(broken, ids, lines))

    def _stories_near(
        self, lines: Sequence[Line], drained: Sequence[tuple[str, float, float]]
    ) -> dict[str, list[dict[str, Any]]]:
        """Of jobs that began on a node about when it was drained."""
        near = {
            line.job
            for line in lines
            for node, since, until in drained
            if line.word == "begin" and line.node == node and since <= line.at <= until + PEACE_S
        }
        with Client(str(self.cluster.home), patience_s=30.0) as client:
            return {job: client.story(job) for job in sorted(near)}

    def _left_behind(self) -> list[str]:
        """When the records say that all are over, nothing may be left; a process that was killed may need a moment."""
        deadline = time.monotonic() + GONE_S
        while (found := strays(self.cluster.work)) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # the soak, at least, leaves nothing
        return [f"stray process {each}" for each in found.values()] or [
            f"a lock is held by nobody: {each}" for each in held_locks(self.cluster.work)
        ]

    def _count(self, asked: Sequence[SoakJob], records: Sequence[dict[str, Any]], lines: Sequence[Line]) -> None:
        self.figures.moments = self.killer.moments
        self.figures.victims = self.killer.victims
        self.figures.jobs += len(asked)
        self.figures.doubtful += sum(not job.job_id for job in asked)
        self.figures.starts += sum(line.word == "begin" for line in lines)
        self.figures.restarts += sum(int(record["restarts"]) for record in records)
        self.figures.states.update(str(record["state"]) for record in records)

    def _story(self, broken: Sequence[str], job_ids: Sequence[str], lines: Sequence[Line] = ()) -> str:
        told = [f"seed {self.seed}, round {self.figures.rounds}:", *broken, "killed lately:", *self.killer.lately[-12:]]
        with Client(str(self.cluster.home), patience_s=30.0) as client:
            for job in job_ids[:6]:
                told.append(f"job {job}, as it wrote itself:")
                told.extend(str(line) for line in lines if line.job == job)
                told.append("and as the journal has it:")
                told.extend(str(event)[:400] for event in client.story(job))
        return "\n  ".join(told) + self.cluster.log_tail(40)


def make_cluster() -> Cluster:
    conf = virtual_nodes(len(soak_jobs.NODES), 2, cpus=8, settings=soak_jobs.SETTINGS)
    return Cluster(conf.replace("MinJobAge=3600", "MinJobAge=900"))


def soak(
    cluster: Cluster, seed: int, *, seconds: float = 0.0, kills: int = 0, told: Callable[[Figures], None] | None = None
) -> Figures:
    """Rounds until so much time has passed or so often was killed, whichever is first. Raises Broken."""
    assert seconds or kills, "it would never end"
    playing = Soak(cluster, seed)
    deadline = time.monotonic() + (seconds or inf)
    while time.monotonic() < deadline and (left := (kills or inf) - playing.killer.moments) > 0:
        playing.round(int(min(KILLS_A_ROUND, left)))
        if told is not None:
            told(playing.figures)
    return playing.figures
