"""A loss that became NaN or infinite, by what a job told its experiment tracker: looked at where that is asked for.

Delay: how often the tracker is asked (a minute). Pure. Invariant: a metric whose name says nothing of a loss is none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from bireme.core.faults.detection.thresholds import Thresholds
from bireme.core.model import observations as o
from bireme.core.model.finding.findings import Gravity, Place, Quote, Trouble

DETECTOR = "loss"
_LOSS = re.compile(r"(?:^|[/_.\s-])(?:loss|perplexity|ppl)(?:$|[/_.\s-])", re.IGNORECASE)


def judge(place: Place, latest: Mapping[str, float], thresholds: Thresholds, at: float) -> list[o.Observation]:
    """`latest`: the newest value of each metric of the run of this start of a job."""
    losses = {name: value for name, value in latest.items() if _LOSS.search(name)}
    if not thresholds.on(DETECTOR) or not losses:
        return []
    broken = {name: value for name, value in losses.items() if not math.isfinite(value)}
    if not broken:
        return [o.TroubleGone(detector=DETECTOR, place=place, at=at, why="its loss is a number again")]
    told = ", ".join(f"{name}={value}" for name, value in sorted(broken.items()))
    trouble = Trouble(
        detector=DETECTOR,
        place=place,
        gravity=Gravity.BROKEN,
        cause="nan_loss",
        title=f"Its loss is no number any more: {told}",
        since=at,
        quotes=(Quote(text=told, source="record", at=at),),
        remedy="End it: what it computes from here on is lost. Go on from a checkpoint before, with a smaller rate.",
        who="you",
        lasts=False,
    )
    return [o.TroubleSeen(trouble, at)]
