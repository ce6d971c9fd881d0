"""The program, or the address, that operators are told of things by: one call for each, never in the loop's way.

Made by the daemon, for idle jobs and for healings. Facts go to the program as variables (`BIREME_IDLE_...`) and as one
JSON object on its stdin; there is no shell. It is run by the daemon's user with a time limit. An address gets the same
JSON by POST, and is named in the log by its host alone.
Invariant: few calls run at a time, and what waits is bounded; what is left out is logged.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

log = logging.getLogger("bireme.daemon")

_AT_ONCE = 2
"""Of jobs' news, and as many of what is no job's: a user's failing jobs do not stand before the fence of a node."""
_AGAIN_S = 2.0
"""Between two tries."""
_WAITING_AT_MOST = 500
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PREFIX = "BIREME_IDLE_"


class Hook:
    """`program`: its path (or an address), empty: there is none; `timeout_s`: how long it may take. Both as they are in
    force."""

    def __init__(
        self,
        program: Callable[[], str],
        timeout_s: Callable[[], float],
        *,
        name: str = "idle.hook",
        prefix: str = _PREFIX,
        tries: int = 1,
    ) -> None:
        """`name`: of the setting, for the log. `prefix`: of the variables. `tries`: of a call that fails."""
        self._program, self._timeout_s = program, timeout_s
        self._name, self._prefix, self._tries = name, prefix, tries
        self._rooms = {of_job: asyncio.Semaphore(_AT_ONCE) for of_job in (True, False)}
        self._calls: dict[bool, set[asyncio.Task[None]]] = {True: set(), False: set()}

    def call(self, facts: Mapping[str, Any]) -> None:
        """Begins a call and returns."""
        program = self._program()
        if not program:
            return
        of_job = bool(facts.get("job_id"))
        calls = self._calls[of_job]
        if len(calls) >= _WAITING_AT_MOST:
            log.error("%s: %d calls wait, and %s of %s is left out", self._name, len(calls), *_of(facts))
            return
        task = asyncio.get_running_loop().create_task(self._run(program, dict(facts), self._rooms[of_job]))
        calls.add(task)
        task.add_done_callback(calls.discard)

    async def close(self) -> None:
        """Waits for none: what runs is killed."""
        for task in (tasks := self.under_way):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def under_way(self) -> list[asyncio.Task[None]]:
        return [task for calls in self._calls.values() for task in calls]

    async def _run(self, program: str, facts: dict[str, Any], room: asyncio.Semaphore) -> None:
        async with room:
            for left in range(self._tries - 1, -1, -1):
                if await self._called(program, facts):
                    return
                if left:
                    await asyncio.sleep(_AGAIN_S)

    async def _called(self, program: str, facts: dict[str, Any]) -> bool:
        """False: it is worth another try."""
        what = _of(facts)[1]
        try:
            if program.startswith(("http://", "https://")):
                await _post(program, json.dumps(facts).encode(), self._timeout_s())
                return True
            code = await run_program(program, facts, self._timeout_s(), self._prefix)
        except TimeoutError:
            limit = self._timeout_s()
            log.error("%s: %s took longer than %g s for %s: killed", self._name, _named(program), limit, what)
            return False
        except (OSError, http.client.HTTPException) as error:
            log.error("%s: %s cannot be run or reached: %s", self._name, _named(program), error)
            return False
        if code > 0:
            log.warning("%s: %s ended with exit code %d for %s", self._name, program, code, what)
        return code == 0


async def run_program(
    program: str, facts: Mapping[str, Any], timeout_s: float, prefix: str, more: Sequence[str] = ()
) -> int:
    """Its exit code; `more`: its arguments. Raises OSError, TimeoutError (then it and its children are killed)."""
    process = await asyncio.create_subprocess_exec(
        program,
        *more,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={"PATH": _PATH, **variables(facts, prefix)},
        cwd="/",
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(timeout_s):
            await process.communicate(json.dumps(facts).encode())
    except (BrokenPipeError, ConnectionResetError):
        await process.wait()  # it does not read what it is told
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            await process.wait()
    assert process.returncode is not None
    return process.returncode


async def _post(address: str, body: bytes, timeout_s: float) -> None:
    """Raises OSError, HTTPException or TimeoutError where it is not taken."""

    def send() -> None:
        url = urlsplit(address)
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        connection = kind(url.hostname or "", url.port, timeout=timeout_s)
        try:
            path = (url.path or "/") + (f"?{url.query}" if url.query else "")
            connection.request("POST", path, body, {"Content-Type": "application/json", "User-Agent": "bireme"})
            status = connection.getresponse().status
        finally:
            connection.close()
        if not 200 <= status < 300:
            raise OSError(f"it answers {status}")

    async with asyncio.timeout(timeout_s):
        await asyncio.to_thread(send)


def _named(program: str) -> str:
    """An address by its host: the rest of it may be a secret."""
    return f"{urlsplit(program).hostname}" if program.startswith(("http://", "https://")) else program


def variables(facts: Mapping[str, Any], prefix: str = _PREFIX) -> dict[str, str]:
    """`BIREME_IDLE_JOB_ID=42` and so on: all but what is not there."""
    plain = ((name, value) for name, value in facts.items() if isinstance(value, str | int | float))
    return {f"{prefix}{name.upper()}": str(value).replace("\0", "") for name, value in plain}


def _of(facts: Mapping[str, Any]) -> tuple[Any, Any]:
    return facts.get("what"), f"job {facts['job_id']}" if facts.get("job_id") else facts.get("place")
