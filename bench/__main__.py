"""`python -m bench [--only launch,submit] [--quick]`: measures, prints one table, writes bench-results/bench.json."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import (
    beside_slurm,
    bireme_cluster,
    commands,
    containers,
    crowd,
    diagnose,
    fences,
    heal,
    images,
    launch,
    machine,
    much,
    placement,
    planner,
    queue,
    restart,
    router,
    services,
    simulator,
    submit,
    telemetry,
    web,
)
from bench.folders import new_folder
from bench.results import Report, Row
from bench.sections import add_only
from bench.sizes import FULL, QUICK, Sizes

SECTIONS = (
    "machine",
    "planner",
    "placement",
    "launch",
    "containers",
    "images",
    "commands",
    "submit",
    "squeue",
    "crowd",
    "restart",
    "much",
    "sim",
    "router",
    "services",
    "telemetry",
    "diagnose",
    "heal",
    "fences",
    "web",
    "slurm",
)


def main() -> int:
    given = _arguments()
    sizes = QUICK if given.quick else FULL
    report = Report(machine.facts() | {"quick": given.quick, "sizes": asdict(sizes), "bireme_conf": _conf(sizes)})
    for section in given.only:
        print(f"measuring {section} ...", file=sys.stderr, flush=True)
        report.rows.extend(_measure(section, sizes, report.facts, given.slurm))
    report.show()
    for name in ("bireme_conf", "slurm_conf"):
        if name in report.facts and "slurm" in given.only:
            print(f"\n# {name}\n{report.facts[name]}")
    print(f"\nwritten to {report.write(Path(given.out))}")
    return 0


def _measure(section: str, sizes: Sizes, facts: dict[str, Any], with_slurm: bool) -> Iterator[Row]:
    if section == "machine":
        return _machine()
    if section == "slurm":
        return beside_slurm.measure(sizes, facts) if with_slurm else iter(())
    if section == "heal":
        return heal.measure(sizes, with_slurm)
    modules = {
        "planner": planner,
        "placement": placement,
        "launch": launch,
        "containers": containers,
        "commands": commands,
        "submit": submit,
        "squeue": queue,
        "crowd": crowd,
        "restart": restart,
        "much": much,
        "sim": simulator,
        "router": router,
        "services": services,
        "telemetry": telemetry,
        "diagnose": diagnose,
        "fences": fences,
        "web": web,
        "images": images,
    }
    return modules[section].measure(sizes)


def _machine() -> Iterator[Row]:
    yield Row("machine", "fdatasync of one page", machine.fsync_ms(new_folder("machine")), "ms")
    yield Row("machine", "python -c ''", machine.python_start_ms(), "ms")


def _conf(sizes: Sizes) -> str:
    lines, names = bireme_cluster.this_host(sizes.cpus)
    return bireme_cluster.CONF.format(host=bireme_cluster.host_name(), nodes=lines, names=names)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Bireme on this machine.")
    add_only(parser, SECTIONS)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it works, not how fast")
    parser.add_argument("--no-slurm", dest="slurm", action="store_false", help="do not start a Slurm to compare with")
    parser.add_argument("--out", default="bench-results", help="folder for bench.json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
