"""bireme sim faults: training on hardware that fails with published rates, under policies side by side.

Words in, figures out; the model is `bireme.sim.hardware`, on the real kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from math import inf

from bireme.commands.voice import CommandFailure
from bireme.core.model.refusals import Refusal
from bireme.sim.clusters import spec_cluster
from bireme.sim.hardware.failures import Hardware, draw
from bireme.sim.hardware.figures import Case, Setting, lines, numbers_of, page
from bireme.sim.hardware.playing import Training, play
from bireme.sim.hardware.policies import POLICIES, Policy
from bireme.sim.hardware.progress import Habits
from bireme.sim.hardware.rates import RATES, SOURCES
from bireme.slurm.serving.values import Written, duration

_DAY_S = 86_400.0
_MOST_NODES, _MOST_DAYS = 10_000, 365.0
NEVER = "never"

ABOUT = """\
Rates: rsc1 (Meta RSC-1, 6.50 failures per 1,000 node-days), rsc2 (2.34), llama3 (3.79), or a number. What fails is
drawn from Llama 3's table of causes. Sources and assumptions: docs/simulator.md.
Policies: {policies}. Without --policy: all of them, and heal without spares and without checkpoints.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = ABOUT.format(policies=", ".join(f"{each.name} ({each.about})" for each in POLICIES.values()))
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--nodes", type=int, default=2000, metavar="N", help="nodes of the pool (2000)")
    add("--gpus", type=int, default=8, metavar="N", help="GPUs of each (8)")
    add(
        "--rate",
        default="rsc1",
        metavar="RATE",
        help="failures per 1,000 node-days: rsc1, rsc2, llama3 or a number (rsc1)",
    )
    add("--policy", action="append", choices=[*POLICIES], help="one to play; several times for several")
    add("--days", type=float, default=30.0, metavar="N", help="(30)")
    add("--jobs", type=int, default=1, metavar="N", help="so many gangs share the nodes (1)")
    add("--spares", default="2%", metavar="N|N%", help="nodes that no gang is made to need (2%%)")
    add("--checkpoint", default="15m", metavar="TIME|never", help="between two checkpoints (15m)")
    add("--save", default="10s", metavar="TIME", help="training waits for one (10s)")
    add("--load", default="5m", metavar="TIME", help="from a start to its first step (5m)")
    add("--repair", default="1d", metavar="TIME", help="mean of a repair (1d)")
    add("--person", default="30m", metavar="TIME", help="until somebody starts a job again by hand (30m)")
    add("--seed", type=int, default=1, help="draws the failures: the same for all policies")
    add("--json", action="store_true", help="print the numbers as JSON")
    add("-o", "--output", metavar="FOLDER", help="write faults.html and faults.json there")
    parser.set_defaults(command=run)


def run(given: argparse.Namespace) -> int:
    _check(given)
    hardware = Hardware(per_1000_node_days=_rate(given.rate), repair_s=_seconds("repair", given.repair))
    config = spec_cluster(f"{given.nodes}x{given.gpus}:gpu" if given.gpus else f"{given.nodes}x1")
    names, span_s = [node.name for node in config.nodes], given.days * _DAY_S
    setting = Setting(
        nodes=given.nodes,
        gpus=given.gpus,
        days=given.days,
        seed=given.seed,
        rate=SOURCES.get(given.rate, "as given"),
        hardware=hardware,
        drawn=draw(names, span_s, hardware, given.seed),
    )
    try:
        cases = [
            Case(name, play(config, setting.drawn.failures, training, policy, span_s))
            for name, policy, training in _cases(given)
        ]
    except Refusal as refusal:
        raise CommandFailure(f"this pool can never hold the training: {refusal}") from refusal
    numbers = numbers_of(setting, cases)
    text = json.dumps(numbers, indent=1)
    if given.output:
        os.makedirs(given.output, exist_ok=True)
        for name, content in (("faults.json", text + "\n"), ("faults.html", page(numbers))):
            with open(os.path.join(given.output, name), "w", encoding="utf-8") as file:
                file.write(content)
    sys.stdout.write(text + "\n" if given.json else "\n".join(lines(numbers)) + "\n")
    return 0


def _cases(given: argparse.Namespace) -> Iterator[tuple[str, Policy, Training]]:
    spares = _spares(given)
    habits = Habits(
        checkpoint_s=inf if given.checkpoint == NEVER else _seconds("checkpoint", given.checkpoint),
        save_s=_seconds("save", given.save, at_least=0.0),
        load_s=_seconds("load", given.load, at_least=0.0),
    )

    def training(spare: int, how: Habits = habits) -> Training:
        return Training(
            jobs=given.jobs, nodes_each=(given.nodes - spare) // given.jobs, gpus_each=given.gpus, habits=how
        )

    person_s = _seconds("person", given.person, at_least=0.0)
    for name in given.policy or POLICIES:
        yield name, replace(POLICIES[name], person_s=person_s), training(spares)
    if not given.policy:
        heal = replace(POLICIES["heal"], person_s=person_s)
        if spares:
            yield "heal, no spares", heal, training(0)
        if habits.checkpoint_s < inf:
            yield "heal, no checkpoints", heal, training(spares, replace(habits, checkpoint_s=inf))


def _check(given: argparse.Namespace) -> None:
    if not 1 <= given.nodes <= _MOST_NODES or not 0 <= given.gpus <= 64:
        raise CommandFailure(f"--nodes is 1 to {_MOST_NODES}, --gpus 0 to 64")
    if not 0.0 < given.days <= _MOST_DAYS:
        raise CommandFailure(f"--days {given.days:g}: more than 0 and at most {_MOST_DAYS:g}")
    if not 1 <= given.jobs <= given.nodes - _spares(given):
        raise CommandFailure(f"--jobs {given.jobs}: each gang needs a node, and spares are nobody's")


def _rate(text: str) -> float:
    try:
        rate = RATES[text] if text in RATES else float(text)
    except ValueError:
        rate = -1.0
    if not 0.0 <= rate <= 1_000.0:
        raise CommandFailure(f"--rate {text}: {', '.join(RATES)}, or failures per 1,000 node-days from 0 to 1000")
    return rate


def _spares(given: argparse.Namespace) -> int:
    number, percent = given.spares.removesuffix("%"), given.spares.endswith("%")
    if not number.isascii() or not number.isdigit():
        raise CommandFailure(f"--spares {given.spares}: nodes, or a share of them as 2%")
    spares = given.nodes * int(number) // 100 if percent else int(number)
    if spares >= given.nodes:
        raise CommandFailure(f"--spares {given.spares}: none would be left for training")
    return spares


def _seconds(name: str, text: str, at_least: float = 1.0) -> float:
    found = duration(at_least)(Written(name, text, ""))
    assert isinstance(found, float)
    return found
