"""The program that operators are told of idle jobs by: one call for each thing that happened, never in the loop's way.

Made by the daemon. Facts go to the program as variables (`BIREME_IDLE_...`) and as one JSON object on its stdin; there
is no shell, and no text that a job's owner wrote. It is run by the daemon's user with a time limit.
Invariant: at most `_AT_ONCE` run, and what waits is bounded; what is left out is logged.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

log = logging.getLogger("bireme.daemon")

_AT_ONCE = 4
_WAITING_AT_MOST = 1_000
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PREFIX = "BIREME_IDLE_"


class Hook:
    """`program`: its path, empty: there is none; `timeout_s`: how long it may take. Both as they are in force."""

    def __init__(self, program: Callable[[], str], timeout_s: Callable[[], float]) -> None:
        self._program, self._timeout_s = program, timeout_s
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._calls: set[asyncio.Task[None]] = set()

    def call(self, facts: Mapping[str, Any]) -> None:
        """Begins a call and returns."""
        program = self._program()
        if not program:
            return
        if len(self._calls) >= _WAITING_AT_MOST:
            log.error("idle.hook: %d calls wait, and %s of job %s is left out", len(self._calls), *_of(facts))
            return
        task = asyncio.get_running_loop().create_task(self._run(program, dict(facts)))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def close(self) -> None:
        """Waits for none: what runs is killed."""
        for task in tuple(self._calls):
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def _run(self, program: str, facts: dict[str, Any]) -> None:
        async with self._room:
            try:
                await self._call(program, facts)
            except OSError as error:
                log.error("idle.hook: %s cannot be run: %s", program, error)

    async def _call(self, program: str, facts: dict[str, Any]) -> None:
        process = await asyncio.create_subprocess_exec(
            program,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PATH": _PATH, **variables(facts)},
            cwd="/",
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(self._timeout_s()):
                await process.communicate(json.dumps(facts).encode())
        except TimeoutError:
            log.error(
                "idle.hook: %s took longer than %g s for job %s: killed", program, self._timeout_s(), _of(facts)[1]
            )
        except (BrokenPipeError, ConnectionResetError):
            await process.wait()  # it does not read what it is told
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                await process.wait()
        if process.returncode and process.returncode > 0:
            log.warning("idle.hook: %s ended with exit code %d for job %s", program, process.returncode, _of(facts)[1])


def variables(facts: Mapping[str, Any]) -> dict[str, str]:
    """`BIREME_IDLE_JOB_ID=42` and so on: all but what is not there."""
    return {f"{_PREFIX}{name.upper()}": str(value) for name, value in facts.items() if value is not None}


def _of(facts: Mapping[str, Any]) -> tuple[Any, Any]:
    return facts.get("what"), facts.get("job_id")
