"""bireme health: is this machine fit for jobs: driver, GPUs, PCIe, mounts, disk, memory, clock, cgroups; in under 5 s.

It needs no daemon; where one runs for this machine, its configuration says what there should be. The checks are
`agent/health`. Exit code 0 unless one failed.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import asdict
from typing import Any

from bireme.agent.health.checks import Check, Expected
from bireme.agent.health.running import run_checks
from bireme.cli.faults.repairing import repair
from bireme.cli.lifecycle import gpus_of
from bireme.cli.parsing import Arguments
from bireme.client.transport import ApiError, BiremeUnavailable, Transport
from bireme.commands.voice import CommandFailure, refused_by_daemon, run_command
from bireme.daemon.paths import Paths
from bireme.slurm.formats.visible import visible

_PATIENCE_S = 0.5
_COLOURS = {"PASS": "32", "WARN": "33", "FAIL": "31"}


def main(argv: list[str]) -> int:
    return run_command("bireme health", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    parser = Arguments(prog="bireme health", description="Is this machine fit for jobs: PASS, WARN or FAIL, and why.")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--gpus", type=int, metavar="N", help="so many there should be (default: the configuration's)")
    parser.add_argument(
        "--repair", action="store_true",
        help="run the site's program (healing.repair) for what is fenced here, check again, and lift what passes",
    )  # fmt: skip
    given = parser.parse_args(argv)
    if given.repair:
        return _repair()
    expected = _expected() if given.gpus is None else Expected(gpus=given.gpus)
    checks = run_checks(expected)
    failed = any(check.status == "FAIL" for check in checks)
    if given.json:
        print(json.dumps({"healthy": not failed, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        for check in checks:
            print(_line(check, colour=sys.stdout.isatty()))
    return 1 if failed else 0


def _repair() -> int:
    try:
        with Transport(Paths().home) as transport:
            nodes = _mine(transport.get("/v1/nodes", {"fields": "name,hostname,address"})["nodes"])
            if len(nodes) != 1:
                raise CommandFailure("this machine is no single node of the cluster: say which with SLURMD_NODENAME")
            told = list(repair(transport, nodes[0]["name"], lambda: run_checks(_expected())))
    except (ApiError, BiremeUnavailable) as error:
        raise refused_by_daemon("", error) from error
    for _, line in told:
        print(visible(line))
    return 0 if all(lifted for lifted, _ in told) else 1


def _mine(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    named = os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    return [node for node in nodes if node["name"] == named] or (nodes if len(nodes) == 1 else [])


def _expected() -> Expected:
    """What the daemon's configuration has for this machine, where it is one node of it: virtual nodes share what there
    is, and nobody can tell what there should be."""
    try:
        with Transport(Paths().home, timeout_s=_PATIENCE_S) as transport:
            nodes = transport.get("/v1/nodes", {"fields": "name,hostname,address,gres,memory_mib"})["nodes"]
    except (BiremeUnavailable, ApiError):
        return Expected()
    mine = _mine(nodes)
    if len(mine) != 1:
        return Expected()
    return Expected(sum(gpus_of(mine[0].get("gres") or "").values()), int(mine[0].get("memory_mib") or 0))


def _line(check: Check, *, colour: bool) -> str:
    mark = f"\033[{_COLOURS[check.status]}m{check.status}\033[0m" if colour else check.status
    line = f"{mark}  {visible(check.name):<16} {visible(check.why)}"
    return line + (f"\n{'':23}-> {visible(check.advice)}" if check.advice else "")
