"""People of a soak: they submit jobs one after another, release what they held, cancel and requeue.

What they ask is written to the jobs' own log, before or after it is asked as the rule about it needs. A submission
without an answer is doubtful: the job may exist, once.
"""

from __future__ import annotations

import os
import random
import threading
import time

from tests.soak_real.jobs import LOG, SoakJob, draw
from tests.support.cluster import Cluster

from bireme.client.sdk import Client
from bireme.client.transport import ApiError, BiremeError

PATIENCE_S = 30.0


class People(threading.Thread):
    """One of them. `jobs` is all that was asked for, answered or not."""

    def __init__(self, cluster: Cluster, prefix: str, seed: str, node: str) -> None:
        """`node`: the one that nobody else drains or resumes."""
        super().__init__(daemon=True)
        self.node = node
        self.cluster = cluster
        self.prefix = prefix
        self.dice = random.Random(seed)
        self.jobs: list[SoakJob] = []
        self.drained: list[tuple[str, float, float]] = []
        """(node, known to be drained since, resumed not before)."""
        self.ended = threading.Event()
        self.failure: BaseException | None = None
        self._log = os.open(cluster.work / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def run(self) -> None:
        try:
            while not self.ended.is_set():
                self._submits()
                if self.dice.random() < 0.3:
                    self._meddles()
                self.ended.wait(self.dice.uniform(0.0, 0.8))
            self._lets_go()
        except BaseException as failure:
            self.failure = failure
        finally:
            os.close(self._log)

    def _submits(self) -> None:
        token = f"{self.prefix}-{len(self.jobs)}"
        job = draw(self.dice, token, self.jobs)
        options = {
            "job_name": token,
            "comment": token,
            "output": "/dev/null",
            "chdir": str(self.cluster.work),
        } | job.options
        if "begin" in job.options:
            job.begin_at = time.time() + 1.0  # `now+2` is taken from the whole second
        self.jobs.append(job)
        try:
            patience_s = PATIENCE_S if self.dice.random() < 0.8 else 0.0
            with Client(str(self.cluster.home), patience_s=patience_s) as client:
                job.job_id = client.submit(str(self.cluster.work / "job.sh"), *job.words(), **options).id
        except BiremeError:
            self.ended.wait(0.2)

    def _meddles(self) -> None:
        known = [job for job in self.jobs[-20:] if job.job_id and not job.tasks and not job.after]
        waited_for = {job.after[1] for job in self.jobs if job.after is not None}
        known = [job for job in known if job.token not in waited_for]
        if not known:
            return
        job = self.dice.choice(known)
        if job.held:
            self._release(job)
            return
        if self.dice.random() < 0.2:
            self._drains()
            return
        job.meddled = True
        word = self.dice.choice(("cancel", "requeue"))
        try:
            with Client(str(self.cluster.home)) as client:
                client.cancel(job.job_id) if word == "cancel" else client.requeue(job.job_id)
        except BiremeError:
            return  # refused, or nobody is there: it may have been done, or not

    def _drains(self) -> None:
        """Their own node, for a moment. Where an answer is missing nobody knows since when: no rule is checked."""
        node = self.node
        try:
            with Client(str(self.cluster.home)) as client:
                client.transport.post("/v1/nodes/update", {"nodes": node, "state": "DRAIN", "reason": "soak"})
                since = time.time()
                self.ended.wait(self.dice.uniform(0.1, 0.5))
                self.drained.append((node, since, time.time()))
        except BiremeError:
            pass
        self._resume(node)

    def _resume(self, node: str) -> None:
        while True:
            try:
                with Client(str(self.cluster.home), patience_s=PATIENCE_S) as client:
                    client.transport.post("/v1/nodes/update", {"nodes": node, "state": "RESUME"})
                return
            except ApiError as refusal:
                if "state" not in str(refusal).lower():
                    raise
                return  # it was not drained after all
            except BiremeError:
                continue

    def _release(self, job: SoakJob) -> None:
        self._say(f"release {job.token}")
        try:
            with Client(str(self.cluster.home), patience_s=PATIENCE_S) as client:
                client.release(job.job_id)
        except BiremeError:
            return
        job.held = False

    def _lets_go(self) -> None:
        for job in self.jobs:
            while job.held and job.job_id and not self._known_over(job):
                self._release(job)

    def _known_over(self, job: SoakJob) -> bool:
        with Client(str(self.cluster.home), patience_s=PATIENCE_S) as client:
            return str(client.job(job.job_id)["state"]) != "PENDING"

    def _say(self, words: str) -> None:
        os.write(self._log, f"{words}\n".encode())
