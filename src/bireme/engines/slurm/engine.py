"""The Slurm engine: Bireme attached to a Slurm cluster that exists. Slurm places; Bireme submits, mirrors and explains.

The daemon constructs it; the runtime drives it through `ports.Engine`, the API hands it submissions and orders through
`ports.ForeignQueue`. What Slurm does is seen by `mirror`. A job has Slurm's own number here too, so that people who use
both see one queue. Submitting is safe to repeat: each job carries a tag in its comment by which it is found again.
Invariant: an order is Slurm's to grant: it is given with the identity of who asked, and refused in Slurm's words.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from bireme.core.model import commands as c
from bireme.core.model.cluster import ClusterConfig
from bireme.core.model.jobs import JobKind, JobSpec, Owner
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.engines.slurm.commands import (
    WHAT_TO_CHECK,
    Done,
    Silent,
    SlurmCommands,
    UnsureRefusal,
    check_identity,
    is_silence,
    refusal,
    why_silent,
)
from bireme.engines.slurm.mirror import Mirror, Pace
from bireme.engines.slurm.queries import CommandSource, Source
from bireme.engines.slurm.replicas import SlurmReplicas, own_variables
from bireme.engines.slurm.rounds import Round
from bireme.engines.slurm.submission import asks_pyxis, batch_words, order_words
from bireme.engines.slurm.usage import USAGE_WORDS, read_usage
from bireme.ports import Blobs, Capabilities, Followed, Order, Report, StepEndpoint

log = logging.getLogger("bireme.engines.slurm")

_START_PATIENCE_S = 15.0
_FIRST_LOOK_S = 30.0
_LOOK_AGAIN = 3
_NUMBER = re.compile(r"\d+")
_OWN_VARIABLES = ("BIREME_",)


class SlurmEngine:
    name = "slurm"

    def __init__(
        self, commands: SlurmCommands, blobs: Blobs, *, source: Source | None = None, pace: Pace | None = None
    ) -> None:
        """`source`: where jobs and nodes are read from, when not with the commands."""
        self._commands, self._blobs = commands, blobs
        self.mirror = Mirror(source or CommandSource(commands), pace)
        self._following: asyncio.Task[None] | None = None
        self._has_pyxis = False
        self._submitting: dict[str, asyncio.Task[int]] = {}
        self._replicas = SlurmReplicas(self, commands)

    # -- ports.Engine ------------------------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(queue=self, beside=self._replicas)

    @property
    def problem(self) -> str:
        return self.mirror.problem

    @property
    def about(self) -> str:
        calls = f"{self._commands.rate.per_minute()} calls in the last minute"
        return f"Slurm {self.mirror.version or '?'}, {calls}; seen: {self.mirror.ages}"

    async def start(self, report: Report) -> None:
        """Returns when the queue was seen once, or after some seconds without: it goes on trying."""
        self.mirror.report = self._replicas.report = report
        self._following = asyncio.create_task(self.mirror.follow(), name="slurm mirror")
        try:
            async with asyncio.timeout(_START_PATIENCE_S):
                await self.mirror.looked.wait()
        except TimeoutError:
            self.mirror.queue.problem = self.mirror.problem or f"slurmctld does not answer yet: {WHAT_TO_CHECK}"

    async def stop(self) -> None:
        self._replicas.stop()
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following

    async def end_jobs(self, grace_s: float) -> None:
        """The jobs are the cluster's own: people have them ended with scancel, not by letting go of Bireme."""
        log.info("jobs of the Slurm cluster go on")

    def reconfigure(self, config: ClusterConfig) -> None:
        self.mirror.look_at_everything()

    def send(self, commands: Sequence[c.Command]) -> None:
        for command in commands:
            if isinstance(command, c.SubmitReplica | c.EndReplica):
                self._replicas.obey(command)
                continue
            assert isinstance(command, c.FindJob), f"nothing is commanded of jobs that Slurm places: {command}"
            self.mirror.find(command.job)

    def step_endpoints(self, job_id: int, step_id: int) -> tuple[StepEndpoint, ...]:
        return ()

    async def live_usage(self, job_id: int) -> dict[str, Any]:
        try:
            done = await self._commands.run(*USAGE_WORDS, f"--jobs={job_id}")
        except Silent as error:
            raise Refusal(Why.ERROR, said=str(error)) from error
        if done.returncode:
            raise refusal(done, (": ",))
        return read_usage(done.out.decode(errors="replace"))

    def acknowledge(self, job_id: int, generation: int) -> None:
        """Slurm keeps its own records."""

    # -- ports.ForeignQueue ------------------------------------------------------------------------------------------

    def takes(self, specs: Sequence[JobSpec]) -> bool:
        return True

    def takes_nodes(self, names: Sequence[str]) -> bool:
        return True

    async def submit(self, specs: Sequence[JobSpec], key: str) -> int:
        check_identity(specs[0].owner)
        if specs[0].kind is not JobKind.BATCH:
            raise Refusal(Why.OWN_COMMAND, f"use Slurm's own srun or salloc: {self._where('srun')}")
        if any(asks_pyxis(spec) for spec in specs):
            await self._check_pyxis()
        tag = hashlib.sha256(key.encode()).hexdigest()[:20] if key else secrets.token_hex(10)
        known = self.mirror.tagged(tag) or await self._seen_before(tag if key else "")
        if known is not None:
            return known
        under_way = self._submitting.get(tag)
        if under_way is None:
            under_way = self._submitting[tag] = asyncio.create_task(self._submit(specs, tag))
            under_way.add_done_callback(lambda _: self._submitting.pop(tag, None))
        return await asyncio.shield(under_way)  # who asked may go away in the middle of it; the submission does not

    async def _check_pyxis(self) -> None:
        """An sbatch that has Pyxis lists its options. One that has it once is not asked again."""
        if self._has_pyxis:
            return
        try:
            told = await self._commands.run("sbatch", "--help")
        except Silent as error:
            raise Refusal(Why.ERROR, said=str(error)) from error
        self._has_pyxis = b"--container-image" in told.out
        if not self._has_pyxis:
            raise Refusal(
                Why.NOT_SUPPORTED,
                "this Slurm runs no images: install Pyxis and Enroot on its nodes (github.com/NVIDIA/pyxis), with a "
                "line for spank_pyxis.so in plugstack.conf, or start the container in the script (apptainer exec)",
            )

    def _where(self, command: str) -> str:
        try:
            return self._commands.path_of(command)
        except Silent as error:
            return str(error)

    async def _seen_before(self, tag: str) -> int | None:
        """A daemon before this one may have submitted it: the first look at the queue tells."""
        if tag and not self.mirror.looked.is_set():
            try:
                async with asyncio.timeout(_FIRST_LOOK_S):
                    await self.mirror.looked.wait()
            except TimeoutError:
                raise UnsureRefusal(Why.ERROR, said=self.problem or "Slurm does not answer") from None
        return self.mirror.tagged(tag)

    async def _submit(self, specs: Sequence[JobSpec], tag: str) -> int:
        spec = specs[0]
        script = self._blobs.get(spec.script)
        try:
            done = await self._commands.run(
                *batch_words(specs, tag),
                identity=spec.owner,
                input=script,
                environ={**self._environment(spec), **own_variables(spec)},
                cwd=spec.work_dir if os.path.isdir(spec.work_dir) else "/",
                umask=spec.umask,
            )
        except Silent as error:
            job_id = await self._found(tag, str(error))
        else:
            job_id = self._accepted(done) or await self._found(tag, why_silent("sbatch", done.err))
        if len(specs) == 1:
            self.mirror.expect(job_id, spec, tag)
        else:  # only Slurm knows the numbers of the components
            with suppress(Silent):
                await self.mirror.refresh([job_id], specs)
        self.mirror.hurry()
        return job_id

    def _accepted(self, done: Done) -> int | None:
        """The job's number; None when Slurm may have accepted it and its answer was lost. Raises its refusal."""
        if done.returncode == 0:
            found = _NUMBER.match(done.out.decode(errors="replace").strip())
            return int(found[0]) if found else None
        if is_silence(done.err):
            return None
        raise refusal(done, ("Batch job submission failed: ",))

    async def _found(self, tag: str, problem: str) -> int:
        """The answer was lost: whether the job is in the queue only the queue can say."""
        for attempt in range(_LOOK_AGAIN):
            await asyncio.sleep(attempt)
            with suppress(Silent):
                await self.mirror.look_at_queue()
                found = self.mirror.tagged(tag)
                if found is not None:
                    return found
                raise Refusal(Why.ERROR, said=problem, hint="the job was not submitted")
        raise UnsureRefusal(
            Why.ERROR, said=problem, hint="whether the job was submitted will be seen when Slurm answers"
        )

    def _environment(self, spec: JobSpec) -> dict[str, str]:
        """The submitter's variables, without those that lead back to this daemon."""
        if not spec.environment:
            return {"PATH": os.defpath}
        variables: Mapping[str, str] = json.loads(self._blobs.get(spec.environment))
        return {name: value for name, value in variables.items() if not name.startswith(_OWN_VARIABLES)}

    async def obey(self, caller: Caller, order: Order) -> None:
        identity = Owner(uid=caller.uid, gid=caller.gid, user=caller.user, groups=caller.groups)
        check_identity(identity)
        try:
            argv = order_words(order)
        except ValueError as error:
            raise Refusal(Why.NOT_SUPPORTED, f"Slurm has no way to change {error} of a job") from error
        try:
            done = await self._commands.run(*argv, identity=identity)
        except Silent as error:
            raise Refusal(Why.ERROR, said=str(error)) from error
        if done.returncode or "error:" in done.err:
            if is_silence(done.err):
                raise Refusal(Why.ERROR, said=why_silent(argv[0], done.err))
            raise refusal(done, (": ",))
        with suppress(Silent):
            await self._see(order)
        self.mirror.hurry()

    async def catch_up(self, job_ids: Sequence[int]) -> None:
        with suppress(Silent):  # what is known is shown; the mirror goes on trying
            await self.mirror.catch_up(job_ids)

    def out_of_date(self, what: Followed) -> str:
        followed: dict[Followed, Round] = {
            "queue": self.mirror.queue,
            "nodes": self.mirror.nodes,
            "history": self.mirror.history,
        }
        return followed[what].out_of_date

    async def _see(self, order: Order) -> None:
        """What an order did is shown to who gave it, as far as Slurm has done it by now."""
        if order.verb == "update_nodes":
            await self.mirror.look_at_nodes(again_soon=True)
            return
        number = _NUMBER.match(order.target)
        if number:
            await self.mirror.refresh([int(number[0])])
