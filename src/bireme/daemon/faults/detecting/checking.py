"""Runs checks of the machine that nodes are on: `bireme health` and the site's HealthCheckProgram, every so often.

The daemon makes it where its agents are on this machine (elsewhere slurmd or the cluster's own checks do it). Both are
programs of their own, with a time limit; what they say becomes observations (`core/faults/detection/node_checks`).
Invariant: nothing here waits for a check but tasks of its own, and a check that hangs is killed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from bireme.core.faults.detection import node_checks
from bireme.core.faults.detection.node_checks import Checked
from bireme.core.model import observations as o
from bireme.core.model.cluster import ClusterConfig
from bireme.daemon.cluster import Cluster

log = logging.getLogger("bireme.daemon")

_FIRST_S = 10.0
"""After a start: whoever waits for the daemon does not wait for this."""
_HEALTH_LIMIT_S, _PROGRAM_LIMIT_S = 20.0, 60.0
_LOOK_S, _UNASKED_S = 1.0, 30.0
"""Between two runs at least; and until slurm.conf is asked again where it names no program.
"""
_LONGEST_OUTPUT = 400
_MOST_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Site:
    """HealthCheckProgram and what goes with it, as slurm.conf says them. `every_s` 0: it is not run."""

    program: str
    every_s: float
    states: str
    limit_s: float

    @classmethod
    def of(cls, config: ClusterConfig) -> Site:
        raw = config.raw
        seconds = (raw.get(name, "0") or "0" for name in ("HealthCheckInterval", "HealthCheckTimeout"))
        every_s, limit_s = (float(text) if text.replace(".", "", 1).isdigit() else 0.0 for text in seconds)
        program = raw.get("HealthCheckProgram", "")
        return cls(
            program if program.startswith("/") else "",
            every_s,
            raw.get("HealthCheckNodeState", "ANY"),
            limit_s or _PROGRAM_LIMIT_S,
        )


def unapplied(config: ClusterConfig, *, is_here: bool) -> str:
    """Why HealthCheckProgram is not run though it is asked for; empty: it is, or nobody asks for it. `is_here`: agents
    of the daemon's own machine run jobs."""
    asked, site = config.raw.get("HealthCheckProgram", ""), Site.of(config)
    if asked.lower() in ("", "(null)"):
        return ""
    if not is_here:
        return f"HealthCheckProgram={asked} is not run here: nodes are other machines"
    if not site.program:
        return f"HealthCheckProgram={asked} is not applied: it must be a full path"
    every = config.raw.get("HealthCheckInterval", "0")
    return "" if site.every_s else f"HealthCheckProgram={asked} is not run: HealthCheckInterval={every}"


class CheckingKeeper:
    """`every_s`: how often `bireme health` is run, 0: never; `news`: tells of an observation whether it changes
    anything; `home`: where this cluster's commands are and its state lives."""

    def __init__(
        self,
        cluster: Cluster,
        every_s: Callable[[], float],
        news: Callable[[o.Observation], bool],
        home: str,
        folder: str,
    ) -> None:
        self._cluster, self._every_s, self._news, self._home, self._folder = cluster, every_s, news, home, folder
        self._room = asyncio.Semaphore(_MOST_AT_ONCE)
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    def begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = tuple(loop.create_task(work()) for work in (self._checks, self._programs))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def _report(self, seen: Sequence[o.Observation]) -> None:
        if new := [each for each in seen if self._news(each)]:
            self._cluster.report(new)

    # -- bireme health -----------------------------------------------------------------------------------------------

    async def _checks(self) -> None:
        await asyncio.sleep(_FIRST_S)
        while True:
            if self._every_s():
                await self.check()
            await asyncio.sleep(self._every_s() or 60.0)

    async def check(self) -> None:
        """Of this machine, once. Where several nodes are on it (a rehearsal), what it finds is said of the first."""
        words = (sys.executable, "-m", "bireme", "health", "--json", "--gpus", str(self._gpus()))
        code, output = await _run(words, {**os.environ, "BIREME_HOME": self._home}, _HEALTH_LIMIT_S)
        try:
            told = [
                Checked(str(each["name"]), str(each["status"]), str(each["why"]), str(each["advice"]))
                for each in json.loads(output)["checks"]
                if each["looked"]
            ]
        except (ValueError, KeyError, TypeError):
            log.warning(
                "bireme health said nothing that can be read (exit code %s): %s", code, output[:_LONGEST_OUTPUT]
            )
            return
        now = self._cluster.clock.now()
        nodes = tuple(self._cluster.state.nodes)
        for node in nodes[:1]:
            self._report(node_checks.judge(node, told, now, len(nodes)))

    def _gpus(self) -> int:
        """So many there should be; 0: nobody can tell. GPUs of a rehearsal have no files, and nodes that share a
        machine share its GPUs."""
        nodes = list(self._cluster.state.nodes.values())
        if len(nodes) != 1:
            return 0
        devices = [device for pool in nodes[0].config.gres if pool.name == "gpu" for device in pool.devices]
        return len(devices) if all(device.file or device.uuid for device in devices) else 0

    # -- HealthCheckProgram ------------------------------------------------------------------------------------------

    async def _programs(self) -> None:
        """At the start of every node, then every HealthCheckInterval."""
        nodes = list(self._cluster.state.nodes)
        while True:
            site = Site.of(self._cluster.state.config)
            if not site.program or not site.every_s:
                await asyncio.sleep(_UNASKED_S)
                continue
            began = asyncio.get_running_loop().time()
            pause_s = site.every_s / max(1, len(nodes)) if "CYCLE" in site.states.upper() else 0.0
            for some in [nodes] if not pause_s else [[node] for node in nodes]:
                await asyncio.gather(*(self._program(site, node) for node in some))
                await asyncio.sleep(pause_s)
            left_s = began + site.every_s - asyncio.get_running_loop().time()
            await asyncio.sleep(max(left_s, _LOOK_S if not pause_s else 0.0))
            nodes = node_checks.wanted(self._cluster.state, site.states)

    async def _program(self, site: Site, node: str) -> None:
        """As slurmd runs it: by the cluster's user, with a time limit; its commands reach this cluster."""
        path = f"{self._folder}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        variables = {"PATH": path, "SLURMD_NODENAME": node, "BIREME_HOME": self._home}
        async with self._room:
            try:
                code, output = await _run((site.program,), variables, site.limit_s)
            except OSError as error:
                code, output = 127, f"{site.program}: {error.strerror}"
        if code:
            log.warning("HealthCheckProgram on %s ended with %d: %s", node, code, output[:_LONGEST_OUTPUT])
        seen = node_checks.of_program(node, site.program, code, output[-_LONGEST_OUTPUT:], self._cluster.clock.now())
        self._report([seen])


async def _run(argv: Sequence[str], variables: Mapping[str, str], limit_s: float) -> tuple[int | None, str]:
    """(exit code, what it wrote). None: it took too long. Raises OSError where it cannot be run."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=dict(variables),
        cwd="/",
        start_new_session=True,
    )
    output = b""
    try:
        async with asyncio.timeout(limit_s):
            output, _ = await process.communicate()
    except TimeoutError:
        return None, ""
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            await process.wait()
    return process.returncode, output.decode(errors="replace").strip()
