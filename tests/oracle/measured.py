"""What a run of the oracle found, as the few figures that COMPATIBILITY.md is made of (`measured.json`)."""

from __future__ import annotations

from typing import Any

from tests.oracle.compare import Outcome
from tests.slurm_cluster import installed


def measured(outcomes: list[Outcome]) -> dict[str, Any]:
    groups: dict[str, dict[str, Any]] = {}
    for outcome in outcomes:
        name = outcome.title.partition("/")[0]
        group = groups.setdefault(name, {"cases": 0, "items": 0, "same": 0, "kinds": {}, "choices": {}})
        group["cases"] += 1
        group["items"] += outcome.total
        group["same"] += outcome.same
        for one in outcome.differences:
            kind = one.known.kind if one.known else "unexplained"
            group["kinds"][kind] = group["kinds"].get(kind, 0) + 1
        for note in outcome.notes:
            word = note.partition(":")[0].lower()
            group["choices"][word] = group["choices"].get(word, 0) + 1
    return {"slurm": installed().version_text, "groups": dict(sorted(groups.items()))}
