"""What if, and Submit: what would be, planned before it is. Their scripts ask `/v1/whatif` and `/v1/explain`.

The pages bring what can be moved: partitions and their nodes, the weights of priorities, the limits that there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bireme.web.asking import Asking
from bireme.web.paging import Pages, Values

pages = Pages()
_WEIGHTS = (
    "PriorityWeightAge", "PriorityWeightFairshare", "PriorityWeightJobSize", "PriorityWeightPartition",
    "PriorityWeightQOS",
)  # fmt: skip
_MOST_LIMITS = 20


@pages.page("/whatif", "whatif.html", title="What if", nav="whatif")
async def whatif(asking: Asking) -> Values:
    config, listed, told, book = await asking.together(
        asking.get("/v1/config"),
        asking.get("/v1/partitions"),
        asking.get("/v1/nodes", {"fields": "name,tres,gres,partitions,state,flags,cpus"}),
        asking.get_or(None, "/v1/accounting/manager"),
    )
    nodes = told["nodes"]
    return {
        "partitions": [_partition(each, nodes) for each in listed["partitions"]],
        "weights": [{"key": key, "value": _weight(config, key)} for key in _WEIGHTS],
        "limits": list(_limits(book))[:_MOST_LIMITS] if book is not None else [],
        "multifactor": "multifactor" in str(config["raw"].get("PriorityType", "priority/multifactor")),
    }


def _partition(partition: Mapping[str, Any], nodes: list[Mapping[str, Any]]) -> dict[str, Any]:
    """With what one more of its nodes would be."""
    own = [each for each in nodes if partition["name"] in each["partitions"]]
    like = own[0] if own else None
    gpus = int(like["tres"].get("gres/gpu", 0)) if like else 0
    model = (
        next((word.split(":")[1] for word in like["gres"].split(",") if word.startswith("gpu:")), "") if like else ""
    )
    return {
        "name": partition["name"],
        "nodes": [each["name"] for each in own],
        "count": len(own),
        "gpus": gpus,
        "model": model if not model.isdigit() else "gpu",
        "cpus": like["cpus"] if like else 0,
    }


def _weight(config: Mapping[str, Any], key: str) -> int:
    text = next((str(value) for name, value in config["raw"].items() if name.lower() == key.lower()), "0")
    return int(text) if text.isdigit() else 0


def _limits(book: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Those of GPUs (and CPUs) at once, which a slider can move."""
    for row in book["associations"]:
        for tres, most in row["limits"].get("grp_tres", {}).items():
            if tres in ("gres/gpu", "cpu"):
                yield {"whose": row["account"], "user": row["user"], "tres": tres, "most": most, "kind": "account"}
    for row in book["qos"]:
        for tres, most in row["limits"].get("grp_tres", {}).items():
            if tres in ("gres/gpu", "cpu"):
                yield {"whose": row["name"], "user": "", "tres": tres, "most": most, "kind": "QOS"}


@pages.page("/submit", "submit.html", title="Submit", nav="submit")
async def submit(asking: Asking) -> Values:
    listed = await asking.get("/v1/partitions")
    return {"partitions": listed["partitions"], "example": EXAMPLE}


EXAMPLE = """#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=1 --gpus=1
#SBATCH --time=02:00:00

srun python train.py
"""
