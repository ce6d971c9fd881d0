"""`make diagnose-score`: what the rules and the judgement make of all cases, as a confusion table.

    python -m tests.diagnosis.score           the table, both parts
    python -m tests.diagnosis.score --seen    and each wrong case of the part that rules may look at

The wrong cases of the scored part are never listed: whoever mends a rule for one of them has no score any more.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass

from tests.diagnosis.cases import Case, Part, all_cases, diagnosed

from bireme.core.diagnosis.model import Diagnosis
from bireme.evidence.rulebook import load


@dataclass(frozen=True)
class Score:
    """What came out for one part."""

    part: Part
    told: tuple[tuple[Case, Diagnosis], ...]

    @property
    def wrong(self) -> list[tuple[Case, Diagnosis]]:
        return [(case, answer) for case, answer in self.told if answer.cause.id != case.cause]

    @property
    def confident_and_wrong(self) -> list[tuple[Case, Diagnosis]]:
        return [(case, answer) for case, answer in self.wrong if answer.confidence == "high"]

    @property
    def right_share(self) -> float:
        return 1 - len(self.wrong) / len(self.told)


def scores() -> tuple[Score, Score]:
    """Of what rules may see, and of what only scores."""
    loaded = load()
    told = [(case, diagnosed(case, loaded)) for case in all_cases()]
    seen = Score("seen", tuple(each for each in told if each[0].part == "seen"))
    return seen, Score("scored", tuple(each for each in told if each[0].part == "scored"))


def _table(score: Score) -> list[str]:
    """A line a true cause: how many, how many of them right, and what the others were taken for."""
    lines = [f"{score.part}: {len(score.told)} cases, {len({case.cause for case, _ in score.told})} causes"]
    for cause in sorted({case.cause for case, _ in score.told}):
        answers = Counter(answer.cause.id for case, answer in score.told if case.cause == cause)
        taken = ", ".join(f"{name} {count}" for name, count in sorted(answers.items()) if name != cause)
        lines.append(f"  {cause:24} {answers[cause]:3} of {answers.total():3}  {taken}".rstrip())
    by_confidence = Counter(answer.confidence for _, answer in score.told)
    sure = ", ".join(f"{name} {by_confidence[name]}" for name in ("high", "medium", "low", "none"))
    lines.append(f"  right: {100 * score.right_share:.1f}%; confidence: {sure}")
    return [*lines, f"  confident and wrong: {len(score.confident_and_wrong)}"]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.diagnosis.score", description="the rules against real failures"
    )
    parser.add_argument("--seen", action="store_true", help="list the wrong cases of the part that rules may look at")
    asked = parser.parse_args(arguments)
    seen, scored = scores()
    for score in (seen, scored):
        print("\n".join(_table(score)))
    for case, answer in seen.wrong if asked.seen else ():
        print(f"{case.name}: {answer.cause.id} ({answer.confidence}), not {case.cause}: {answer.summary}")
    return 1 if seen.confident_and_wrong or scored.confident_and_wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
