"""bireme sim world and bireme sim soak: worlds in which everything goes wrong, one to look at or as many as one likes.

Arguments in, lines out; the worlds are `bireme.sim.faults`. Exits with 1 where a rule was broken.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable

from bireme.cli.parsing import Arguments
from bireme.commands.voice import CommandFailure
from bireme.sim.faults.draw import Story, draw
from bireme.sim.faults.draw_services import draw_with_services
from bireme.sim.faults.fencing import draw_with_fences
from bireme.sim.faults.idling import draw_with_idle
from bireme.sim.faults.play import Failed
from bireme.sim.faults.soak import Tally, play, shrink, soak

TELL_EVERY_S = 10.0
SERVICES = "of worlds with services"
IDLE = "of worlds with idle GPUs"
FENCES = "of worlds with GPUs and nodes that break"


def add_commands(commands: argparse._SubParsersAction[Arguments]) -> None:
    world = commands.add_parser("world", help="one fault world, by its seed: what a failure's line replays")
    world.add_argument("--seed", type=int, required=True, help="draws the cluster, the jobs and the faults")
    world.add_argument("--until", type=int, metavar="K", help="stop after so many turns of the daemon")
    world.add_argument("--without", default="", metavar="1,2,5-9", help="leave out these acts of the story")
    world.add_argument("--story", action="store_true", help="only show what was drawn")
    world.add_argument("--shrink", action="store_true", help="look for a smaller story that breaks the same rule")
    world.add_argument("--services", action="store_true", help=SERVICES)
    world.add_argument("--idle", action="store_true", help=IDLE)
    world.add_argument("--fences", action="store_true", help=FENCES)
    world.set_defaults(command=_world)
    many = commands.add_parser("soak", help="fault worlds without end: worlds, events, faults, and what broke")
    many.add_argument("--seconds", type=float, help="end after so long; default: never")
    many.add_argument("--first", type=int, default=1, metavar="SEED", help="the first seed; the others follow")
    many.add_argument("--worlds", type=int, metavar="N", help="end after so many")
    many.add_argument("--services", action="store_true", help=SERVICES)
    many.add_argument("--idle", action="store_true", help=IDLE)
    many.add_argument("--fences", action="store_true", help=FENCES)
    many.set_defaults(command=_soak)


# -- one world -------------------------------------------------------------------------------------------------------


def _world(given: argparse.Namespace) -> int:
    story = _draws(given)(given.seed).without(_numbers(given.without))
    if given.story:
        _show_story(story)
        return 0
    try:
        outcome = play(story, until=given.until)
    except Failed as failure:
        if given.shrink:
            story, failure = shrink(story, failure)
            _show_story(story)
        _show_failure(failure, given.without if not given.shrink else _left_out(_draws(given)(given.seed), story))
        return 1
    cut_short = given.until is not None and outcome.steps >= given.until
    verdict = "safe so far" if cut_short else "safe, and everything ended"
    print(f"world {given.seed}: {verdict}: {outcome.steps} turns, {outcome.events} events, {outcome.jobs} jobs,")
    print(f"{outcome.deaths} deaths of the daemon")
    return 0


def _numbers(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            raise CommandFailure(f"--without {text}: name acts by their numbers, like 3,7-9 (--story shows them)")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _draws(given: argparse.Namespace) -> Callable[[int], Story]:
    kinds = {"--services": draw_with_services, "--idle": draw_with_idle, "--fences": draw_with_fences}
    named = [flag for flag in kinds if getattr(given, flag.removeprefix("--"))]
    if len(named) > 1:
        raise CommandFailure(f"{' and '.join(named)} are {len(named)} kinds of worlds: name one")
    return kinds[named[0]] if named else draw


def _left_out(whole: Story, story: Story) -> str:
    kept = {act.number for act in story.acts}
    return ",".join(str(act.number) for act in whole.acts if act.number not in kept)


def _show_story(story: Story) -> None:
    nodes = story.config.nodes
    print(f"world {story.seed}: {len(nodes)} nodes of {nodes[0].cpus} CPUs, {len(story.acts)} acts")
    for act in story.acts:
        print(f"  {act}")


def _show_failure(failure: Failed, without: str) -> None:
    print(f"world {failure.seed} broke a rule: {failure}", file=sys.stderr)
    print("what had happened last:", file=sys.stderr)
    for act in failure.lately:
        print(f"  {act}", file=sys.stderr)
    print(f"again: {failure.replay}{f' --without {without}' if without else ''}", file=sys.stderr)


# -- many ------------------------------------------------------------------------------------------------------------


def _soak(given: argparse.Namespace) -> int:
    seeds = itertools.count(given.first) if given.worlds is None else range(given.first, given.first + given.worlds)
    teller = _Teller()
    try:
        soak(seeds, given.seconds, teller, _draws(given))
    except KeyboardInterrupt:
        print("stopped")
    teller.summary()
    return 1 if teller.tally.failures else 0


class _Teller:
    """A line now and then, and one for every failure as it comes."""

    def __init__(self) -> None:
        self.tally = Tally()
        self._began = self._told_at = time.monotonic()
        self._failures = 0

    def __call__(self, seed: int, tally: Tally) -> None:
        self.tally = tally
        for failure in tally.failures[self._failures :]:
            _show_failure(failure, "")
        self._failures = len(tally.failures)
        if time.monotonic() - self._told_at >= TELL_EVERY_S:
            self._told_at = time.monotonic()
            print(f"{self._line()}, at seed {seed}", flush=True)

    def _line(self) -> str:
        tally, seconds = self.tally, time.monotonic() - self._began
        return (
            f"{tally.worlds} worlds, {tally.events} events, {tally.jobs} jobs, {tally.deaths} deaths of the daemon, "
            f"{len(tally.failures)} failures in {seconds:.0f} s"
        )

    def summary(self) -> None:
        print(self._line())
        for kind, count in sorted(self.tally.acts.items()):
            print(f"  {count:7} {kind}")
