"""bireme sim serve: a day of requests against a service's policy, without a cluster and without waiting for the day.

Words in, figures out; the model is `bireme.sim.serving`. The policy is written as for `bireme serve`: a script with
its `#BIREME` lines, flags, or both; what is asked for besides is the traffic, and how a replica behaves.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from bireme.commands.voice import CommandFailure
from bireme.core.model.jobs import JobSpec, Owner
from bireme.core.model.serving.services import ServiceSpec
from bireme.core.scaling.checking import problems
from bireme.core.scaling.schedule import UtcOffset
from bireme.sim.serving.figures import lines, numbers_of
from bireme.sim.serving.model import Conditions, Unsimulated, simulate
from bireme.sim.serving.traffic import BadTrafficError, Traffic, Work, traffic_of_curve, traffic_of_file
from bireme.slurm.options.errors import OptionError
from bireme.slurm.script import read_script
from bireme.slurm.serving.building import build, settled, values_of
from bireme.slurm.serving.reading import Lines, read_line, read_lines
from bireme.slurm.serving.values import Written, duration, suggested_name

DAY = "day:peak=20/s at 14:00, night=1/s"
FIRST_DAY = "2027-01-11"
NOBODY = Owner(uid=65534, gid=65534, user="nobody")

ABOUT = """\
All flags of `bireme serve` say what they say there (--replicas 0-4 --target-concurrency 16 --max-concurrency 16 --at
'Mon-Fri 08:00 min=4' ...); so does a script with #BIREME lines. A curve is one of these, with any of days=7,
weekend=0.3, burst=100/s at 10:30 for 2min after it:
  day:peak=40/s at 14:00, night=1/s     steps:00:00=1/s, 08:00=20/s, 18:00=5/s     flat:rate=5/s
A file has a first line with the names of its columns: time (seconds, or 2027-01-11T08:00:00), and duration (seconds)
or tokens; without these all requests take --work.
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
    parser.add_argument("--seed", type=int, default=1, help="draws the requests of a curve")
    parser.add_argument("--changes", action="store_true", help="every change of the number wanted, and why")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.set_defaults(command=run, takes_more=True)


def run(given: argparse.Namespace) -> int:
    try:
        spec = _spec(given.more)
        conditions = _conditions(given)
        traffic = _traffic(given, conditions)
        outcome = simulate(spec, traffic, conditions)
    except (OptionError, BadTrafficError, Unsimulated) as error:
        raise CommandFailure(*str(error).splitlines()) from error
    found = numbers_of(spec, traffic, conditions, outcome)
    if given.json:
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
    else:
        for line in lines(spec, found, changes=given.changes):
            print(line.rstrip())
    return 0


def _spec(words: list[str]) -> ServiceSpec:
    line, found = read_line(words), Lines(())
    if line.script:
        with open(line.script, "rb") as file:
            found = read_lines(read_script(file.read()), line.script.rpartition("/")[2])
    name = suggested_name(line.script or "service")
    spec = build(name, JobSpec(name=name, owner=NOBODY), values_of(settled(found.flags, line.flags)))
    if wrong := problems(spec.scaling):
        raise OptionError("; ".join(wrong))
    return spec


def _conditions(given: argparse.Namespace) -> Conditions:
    try:
        day, zone = datetime.fromisoformat(given.first_day), ZoneInfo(given.zone)
    except ZoneInfoNotFoundError as error:
        raise CommandFailure(f"--zone {given.zone}: there is no such time zone") from error
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
        raise CommandFailure("--curve and --requests: one of them")
    if not 0.0 <= given.spread <= 100.0:
        raise CommandFailure("--spread: 0 to 100")
    work = Work(_seconds("work", given.work), given.spread, _seconds("token-time", given.token_time))
    if given.requests:
        return traffic_of_file(given.requests, work, skip_bad=given.skip_bad)
    weekday = datetime.fromtimestamp(conditions.begins_at + conditions.utc_offset(conditions.begins_at), UTC).weekday()
    traffic = traffic_of_curve(given.curve or DAY, work, given.seed, weekday)
    if not len(traffic.at):
        raise CommandFailure(f"--curve {traffic.name!r}: no requests")
    return replace(traffic, problems=())


def _seconds(flag: str, text: str) -> float:
    found = duration(0.001)(Written(flag, text, ""))
    assert isinstance(found, float)
    return found
