"""Has a job's output read by a process of its owner's own, for who may see the answer and not the files.

`routes/diagnosis` asks, and the daemon's keeper of checkpoints. The daemon opens no user's file itself: a file system
that hangs, a link to somebody else's file, a pipe in its place are the child's to meet. What it answers is not believed
(`evidence/wire`): the owner can do to that process what they can do to any of theirs.
Invariants: a child has no descriptor of the daemon's, is gone when the answer is given, and costs no more than
`LIMIT_S` and `MOST_ANSWER`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from bireme.agent.system.identity import Identity

LIMIT_S = 45.0
READING_S = 20
"""What the child may spend on files; it needs some for the rest."""
MOST_ANSWER = 16 << 20
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
_PIECE = 1 << 16
_LOOKS, _LOOK_EVERY_S = 40, 0.05
_GONE_EVERY_S = 1.0
"""How often it is asked whether anybody still waits."""
_lingering: list[subprocess.Popen[bytes]] = []
"""Killed, and not gone yet."""
_MOST_LINGERING = 8


class UnreadError(Exception):
    """The failure to read a job's output; the text says why."""


async def read_as_owner(
    owner: Identity, outputs: Sequence[Mapping[str, Any]], rules: str, is_gone: Callable[[], bool] = bool
) -> dict[str, Any]:
    """What `python -m bireme.evidence` answers. `is_gone`: nobody waits for it any more. Raises UnreadError."""
    request = {"owner_uid": owner.uid, "outputs": list(outputs), "rules": rules, "limits": {"seconds": READING_S}}
    return await ask_owner(owner, "bireme.evidence", request, LIMIT_S, is_gone)


async def ask_owner(
    owner: Identity,
    program: str,
    request: Mapping[str, Any],
    limit_s: float,
    is_gone: Callable[[], bool] = bool,
) -> dict[str, Any]:
    """What a program of ours (a module's name) answers to a request, run as this user. Raises UnreadError."""
    if is_gone():
        raise UnreadError("nobody waits for it")
    if not owner.is_own() and os.geteuid() != 0:
        raise UnreadError("the daemon is not root and cannot read as its owner does")
    _lingering[:] = [child for child in _lingering if child.poll() is None]
    if len(_lingering) >= _MOST_LINGERING:
        raise UnreadError(f"{len(_lingering)} processes that read outputs hang in a file system; see `ps`")
    try:
        child = await asyncio.to_thread(_started, owner, program, json.dumps(request).encode())
    except OSError as error:
        raise UnreadError(f"no process of its owner's could be started: {error.strerror}") from error
    try:
        async with asyncio.timeout(limit_s):
            data = await _told_by(child, is_gone)
    except TimeoutError:
        raise UnreadError(f"its output could not be read within {limit_s:g} s") from None
    finally:
        await _end(child)
    return await asyncio.to_thread(_answer, data)


def _started(owner: Identity, program: str, request: bytes) -> subprocess.Popen[bytes]:
    becoming: dict[str, Any] = {}
    if not owner.is_own():
        becoming = {"user": owner.uid, "group": owner.gid, "extra_groups": list(owner.groups)}
    question = os.memfd_create("request", os.MFD_CLOEXEC)  # no pipe, which somebody would have to wait at
    try:
        os.write(question, request)
        os.lseek(question, 0, os.SEEK_SET)
        return subprocess.Popen(
            [sys.executable, "-I", "-m", program],
            stdin=question,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_ENVIRONMENT,
            cwd="/",
            start_new_session=True,
            **becoming,
        )
    finally:
        os.close(question)


async def _told_by(child: subprocess.Popen[bytes], is_gone: Callable[[], bool]) -> bytes:
    """All that it writes. Nothing here waits for its end: whoever else has its pipe may keep that open."""
    reader = asyncio.StreamReader(limit=_PIECE)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, child.stdout)
    data = bytearray()
    try:
        while True:
            try:
                async with asyncio.timeout(_GONE_EVERY_S):
                    piece = await reader.read(_PIECE)
            except TimeoutError:
                if is_gone():
                    raise UnreadError("nobody waits for it") from None
                continue
            data += piece
            if not piece:
                break
            if len(data) > MOST_ANSWER:
                raise UnreadError("what was read of its output is too long")
    finally:
        transport.close()
    return bytes(data)


async def _end(child: subprocess.Popen[bytes]) -> None:
    """Kills what it started in its session too. One that a file system holds is waited for by whoever comes next."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    for _ in range(_LOOKS):
        if child.poll() is not None:
            return
        await asyncio.sleep(_LOOK_EVERY_S)
    _lingering.append(child)


def _answer(data: bytes) -> dict[str, Any]:
    try:
        told = json.loads(data)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise UnreadError("the process that reads its output ended without an answer")
    if isinstance(why := told.get("error"), str):
        raise UnreadError(why[:500])
    return told
