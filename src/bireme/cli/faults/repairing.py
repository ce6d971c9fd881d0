"""bireme health --repair: the site's own program repairs what is fenced on this machine, and the checks decide.

The program (`healing.repair`: it resets a GPU, reloads a driver, asks for a reboot) is run once for each fence, by who
types the command, without a shell and with no arguments: what is known goes to it as variables (`BIREME_REPAIR_...`)
and as JSON on its stdin. When it ends well the checks are run again; when none fails, the findings are closed, and the
fence is lifted with them. Invariant: no fence is lifted whose repair, or whose check, has failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bireme.agent.health.checks import Check
from bireme.client.transport import ApiError, Transport
from bireme.commands.voice import CommandFailure
from bireme.daemon import settings
from bireme.daemon.hooks import run_program
from bireme.daemon.paths import Paths
from bireme.daemon.settings import SettingsError

Record = dict[str, Any]
_PREFIX = "BIREME_REPAIR_"
_PASSED = "repaired, and the checks of its node passed"


def repair(transport: Transport, node: str, check: Callable[[], Sequence[Check]]) -> Iterator[tuple[bool, str]]:
    """Of each fence on the node: whether it was lifted, and a line about it. Raises CommandFailure."""
    program, timeout_s = _program()
    fences = [each for each in transport.get("/v1/healings")["fences"] if each["node"] == node]
    if not fences:
        yield True, f"nothing of {node} is fenced"
    for fence in fences:
        why = _repaired(program, timeout_s, _facts(transport, fence)) or _failing(check())
        if why:
            yield False, f"{fence['place']} stays fenced: {why}"
            continue
        try:
            _close(transport, fence)
        except ApiError as error:
            yield False, f"{fence['place']} stays fenced: {error}"
            continue
        yield True, f"{fence['place']} is in service again: {_PASSED}"


def _program() -> tuple[str, float]:
    try:
        found = settings.load(Paths().home)
    except SettingsError as error:
        raise CommandFailure(str(error)) from error
    if not found.healing_repair:
        what = "healing.repair in bireme.toml names no program that could repair anything (docs/healing.md)"
        raise CommandFailure(what)
    return found.healing_repair, float(found.healing_repair_timeout_s)


def _facts(transport: Transport, fence: Record) -> Record:
    healing = transport.get(f"/v1/healings/{fence['healing']}")["healing"]
    names = ("place", "node", "gpu", "uuid", "why", "healing")
    return {**{name: fence[name] for name in names}, "findings": healing["findings"], "evidence": healing["evidence"]}


def _repaired(program: str, timeout_s: float, facts: Record) -> str:
    """What was wrong with the repair; empty: it ended well."""
    try:
        code = asyncio.run(run_program(program, facts, timeout_s, _PREFIX))
    except TimeoutError:
        return f"{program} took longer than {timeout_s:g} s and was ended"
    except OSError as error:
        return f"{program} cannot be run: {error.strerror or error}"
    return f"{program} ended with exit code {code}" if code else ""


def _failing(checks: Sequence[Check]) -> str:
    failed = [f"{each.name}: {each.why}" for each in checks if each.status == "FAIL" or not each.looked]
    return f"a check fails after the repair: {'; '.join(failed)}" if failed else ""


def _close(transport: Transport, fence: Record) -> None:
    """Closes what is found there; a fence by hand, which stands for no finding, is undone."""
    standing = [each for each in transport.get("/v1/findings")["findings"] if _stands_for(each, fence)]
    for finding in standing:
        transport.post(f"/v1/findings/{finding['id']}/mended", {"why": _PASSED})
    if any(each["place"] == fence["place"] for each in transport.get("/v1/healings")["fences"]):
        transport.post(f"/v1/healings/{fence['healing']}/undo", {"why": _PASSED})


def _stands_for(finding: Record, fence: Record) -> bool:
    if finding["job_id"] or finding["node"] != fence["node"] or finding["gravity"] != "broken":
        return False
    same_gpu = finding["gpu"] == fence["gpu"] or (bool(fence["uuid"]) and finding["uuid"] == fence["uuid"])
    return fence["gpu"] is None or same_gpu
