"""bireme sim serve: a day of requests against a service's policy, without a cluster and without waiting for the day.

Words in, figures out; the model is `bireme.sim.serving`. The policy is written as for `bireme serve`: a script with
its `#BIREME` lines, flags, or both; what is asked for besides is the traffic, how a replica behaves, and, if replicas
are to find room beside training, the cluster and that training.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from bireme.cli.simulator.inputs import AS_CONFIGURED, WORKLOAD, add_inputs, cluster_of, rule_of, workload_of
from bireme.commands.voice import CommandFailure, Voice
from bireme.core.model.jobs import Owner
from bireme.core.model.serving.services import ServiceSpec
from bireme.core.scaling.schedule import UtcOffset
from bireme.sim.policies import find_policy
from bireme.sim.serving.figures import lines, numbers_of, pool_numbers
from bireme.sim.serving.model import Conditions, Unsimulated, simulate
from bireme.sim.serving.pool import Setup, simulate_in_pool
from bireme.sim.serving.traffic import BadTrafficError, Traffic, Work, traffic_of_curve, traffic_of_file
from bireme.sim.serving.training import Habits
from bireme.slurm.options.context import SubmitContext
from bireme.slurm.options.errors import OptionError
from bireme.slurm.serving.building import read_service
from bireme.slurm.serving.reading import read_line
from bireme.slurm.serving.values import Written, duration

DAY = "day:peak=20/s at 14:00, night=1/s"
FIRST_DAY = "2027-01-11"
NO_NAME, NO_SCRIPT = "service", b"#!/bin/sh\n"
NEVER = "never"
HABITS = {"checkpoint": "1h", "restart": "2m", "save": NEVER}
NOBODY = Owner(uid=65534, gid=65534, user="nobody")

ABOUT = """\
All flags of `bireme serve` say what they say there (--replicas 0-4 --target-concurrency 16 --max-concurrency 16 --at
'Mon-Fri 08:00 min=4' ...); so does a script with #BIREME lines. A curve is one of these, with any of days=7,
weekend=0.3, burst=100/s at 10:30 for 2min after it:
  day:peak=40/s at 14:00, night=1/s     steps:00:00=1/s, 08:00=20/s, 18:00=5/s     flat:rate=5/s
A file has a first line with the names of its columns: time (seconds, or 2027-01-11T08:00:00), and duration (seconds)
or tokens; without these all requests take --work.
With --cluster (4x8:h100, a slurm.conf ...) or --workload (a trace, generate:..., "jobs:2x8 for 12h at 00:00, 10x1 for
30min at 06:00") replicas are jobs of a simulated cluster, and training makes way for them: what a replica asks for is
said with sbatch's options (--gpus=1), on the line or in the script.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog, parser.formatter_class = ABOUT, argparse.RawDescriptionHelpFormatter
    parser.usage = "bireme sim serve [SCRIPT] [FLAGS OF bireme serve] [--curve CURVE | --requests FILE] [...]"
    parser.add_argument("--curve", metavar="CURVE", help=f"requests drawn from a curve (default: {DAY!r})")
    parser.add_argument("--requests", metavar="FILE", help="requests of a CSV, plain or .gz")
    parser.add_argument("--skip-bad", action="store_true", help="leave out rows that are no requests")
    parser.add_argument("--work", default="2s", metavar="TIME", help="a replica works on a request for so long (2s)")
    parser.add_argument("--spread", type=float, default=0.5, metavar="X", help="standard deviation over mean (0.5)")
    parser.add_argument(
        "--token-time", default="20ms", metavar="TIME", help="of a file with tokens: each takes so long"
    )
    parser.add_argument("--load", default="60s", metavar="TIME", help="from a replica's start until it is ready (60s)")
    parser.add_argument(
        "--first-day", default=FIRST_DAY, metavar="DATE", help=f"for schedules and weekends ({FIRST_DAY})"
    )
    parser.add_argument("--zone", default="UTC", help="time zone of the schedules, such as Europe/Berlin")
    parser.add_argument("--cluster", default="", help="where replicas find room: 4x8:h100, a slurm.conf ...")
    parser.add_argument("--workload", default="", help=f"training beside the service: {WORKLOAD}")
    parser.add_argument("--policy", default=AS_CONFIGURED, help="how it is scheduled")
    add_inputs(parser)
    parser.add_argument(
        "--checkpoint", default=HABITS["checkpoint"], metavar="TIME|never", help="training saves its work so often (1h)"
    )
    parser.add_argument(
        "--restart", default=HABITS["restart"], metavar="TIME", help="a job that comes back loads for so long (2m)"
    )
    parser.add_argument(
        "--save", default=HABITS["save"], metavar="TIME|never",
        help="told to make way, training saves once more, which takes so long (never)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="draws the requests of a curve")
    parser.add_argument("--changes", action="store_true", help="every change of the number wanted, and why")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.set_defaults(command=run, takes_more=True)


def run(given: argparse.Namespace) -> int:
    try:
        conditions = _conditions(given)
        spec = _spec(given.more, conditions)
        traffic = _traffic(given, conditions)
        found = _played(given, spec, traffic, conditions)
    except (OptionError, BadTrafficError, Unsimulated) as error:
        raise CommandFailure(*str(error).splitlines()) from error
    if given.json:
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
    else:
        for line in lines(spec, found, changes=given.changes):
            print(line.rstrip())
    return 0


def _played(given: argparse.Namespace, spec: ServiceSpec, traffic: Traffic, conditions: Conditions) -> dict[str, Any]:
    setup = _setup(given)
    if setup is None:
        return numbers_of(spec, traffic, conditions, simulate(spec, traffic, conditions))
    played = simulate_in_pool(spec, traffic, conditions, setup)
    found = numbers_of(spec, traffic, conditions, played.requests)
    return found | pool_numbers(setup, played)


def _setup(given: argparse.Namespace) -> Setup | None:
    """A cluster, if one was named, or training that needs one; None: there is always room."""
    if not given.cluster and not given.workload:
        _refuse_what_needs_a_cluster(given)
        return None
    if given.cluster.split(" ")[0] == "fit" and not given.workload:
        raise CommandFailure("--cluster fit: name the training that it is to fit (--workload), or say its size")
    workload = workload_of(given) if given.workload else None
    return Setup(
        config=cluster_of(given, given.cluster, workload),
        policy=find_policy(given.policy),
        workload=workload,
        rule=rule_of(given),
        habits=_habits(given),
        skip_bad=given.skip_bad,
    )


def _refuse_what_needs_a_cluster(given: argparse.Namespace) -> None:
    usual: dict[str, Any] = {"set": [], "policy": AS_CONFIGURED, "first": None, "limits": "ladder", **HABITS}
    for name, value in usual.items():
        if getattr(given, name) != value:
            raise CommandFailure(
                f"--{name} says something of a cluster: name one (--cluster 4x8:h100), or training (--workload)"
            )


def _habits(given: argparse.Namespace) -> Habits:
    return Habits(
        checkpoint_s=inf if given.checkpoint == NEVER else _seconds("checkpoint", given.checkpoint),
        restart_s=_seconds("restart", given.restart, at_least=0.0),
        save_s=None if given.save == NEVER else _seconds("save", given.save),
    )


def _spec(words: list[str], moment: Conditions) -> ServiceSpec:
    """What `bireme serve` would make of these words; without a script its replicas ask for what the words say."""
    line = read_line(words)
    if line.script:
        with open(line.script, "rb") as file:
            script = file.read()
    else:
        script, line = NO_SCRIPT, replace(line, script=NO_NAME, sbatch=(*line.sbatch, NO_NAME))
    context = SubmitContext(owner=NOBODY, now=moment.begins_at, utc_offset=moment.utc_offset)
    asked = read_service(line, script, context)
    for notice in asked.notices:
        Voice("bireme sim").say(notice)
    return asked.spec


def _conditions(given: argparse.Namespace) -> Conditions:
    try:
        day, zone = datetime.fromisoformat(given.first_day), ZoneInfo(given.zone)
    except ZoneInfoNotFoundError as error:
        raise CommandFailure(f"--zone {given.zone}: there is no such time zone; one is Europe/Berlin") from error
    except ValueError as error:
        raise CommandFailure(f"--first-day {given.first_day}: a date such as {FIRST_DAY} is meant") from error
    midnight = day.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=zone)
    return Conditions(_seconds("load", given.load), midnight.timestamp(), _offset_in(zone))


def _offset_in(zone: ZoneInfo) -> UtcOffset:
    def offset(at: float) -> float:
        ahead = datetime.fromtimestamp(at, UTC).astimezone(zone).utcoffset() or timedelta()
        return ahead.total_seconds()

    return offset


def _traffic(given: argparse.Namespace, conditions: Conditions) -> Traffic:
    if given.curve and given.requests:
        raise CommandFailure("--curve draws requests, --requests reads them from a file: give one of the two")
    if not 0.0 <= given.spread <= 100.0:
        raise CommandFailure(f"--spread {given.spread:g}: 0 to 100 is meant; 0: all requests take --work")
    work = Work(_seconds("work", given.work), given.spread, _seconds("token-time", given.token_time))
    if given.requests:
        return traffic_of_file(given.requests, work, skip_bad=given.skip_bad)
    weekday = datetime.fromtimestamp(conditions.begins_at + conditions.utc_offset(conditions.begins_at), UTC).weekday()
    traffic = traffic_of_curve(given.curve or DAY, work, given.seed, weekday)
    if not len(traffic.at):
        raise CommandFailure(f"--curve {traffic.name!r}: it comes to no requests: say a higher rate")
    return replace(traffic, problems=())


def _seconds(flag: str, text: str, at_least: float = 0.001) -> float:
    found = duration(at_least)(Written(flag, text, ""))
    assert isinstance(found, float)
    return found
