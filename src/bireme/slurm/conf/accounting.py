"""AccountingStorageEnforce and TRESBillingWeights, typed and checked. Called by `settings` and `partitions`."""

from __future__ import annotations

import re

from bireme.core.model.accounts import tres_rank
from bireme.slurm.errors import SlurmSyntaxError

ENFORCE = ("associations", "limits", "nojobs", "nosteps", "qos", "safe", "wckeys")
_IMPLIED = {
    "limits": ("associations",),
    "qos": ("associations",),
    "wckeys": ("associations",),
    "safe": ("associations", "limits"),
    "nojobs": ("nosteps",),
    "all": ("associations", "limits", "qos", "safe", "wckeys"),
}
_WEIGHT = re.compile(
    r"(?P<tres>[A-Za-z]+(?:/[^\s=,]+)?)=(?P<weight>-?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?P<unit>[KMGTPkmgtp]?)"
)
_PER_UNIT = {"": 1.0, "K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40, "P": 2.0**50}
_MEBIBYTE = 2.0**20


def enforcement(text: str) -> tuple[str, ...]:
    """The words in force: those written and those they imply, in Slurm's order."""
    if text.lower() in ("", "none", "0"):
        return ()
    found: set[str] = set()
    for written in text.split(","):
        word = "associations" if written.strip() == "1" else written.strip().lower()
        if word not in ENFORCE and word != "all":
            raise SlurmSyntaxError(f"'{written}' is none of {', '.join(ENFORCE)}, all")
        found.update((word, *_IMPLIED.get(word, ())))
    return tuple(word for word in ENFORCE if word in found)


def billing_weights(text: str) -> tuple[tuple[str, float], ...]:
    """`CPU=1.0,Mem=0.25G,GRES/gpu=2.0`: what one unit costs; memory and burst buffers are counted in MiB."""
    weights: dict[str, float] = {}
    for part in text.split(","):
        match = _WEIGHT.fullmatch(part.strip())
        if match is None:
            raise SlurmSyntaxError(f"'{part}' is not TRES=WEIGHT, as in CPU=1.0,Mem=0.25G,GRES/gpu=2.0")
        kind, slash, rest = match["tres"].partition("/")
        name = kind.lower() + slash + rest
        in_mebibytes = name == "mem" or name.startswith("bb/")
        scale = _PER_UNIT[match["unit"].upper()] / (_MEBIBYTE if in_mebibytes and match["unit"] else 1.0)
        weights[name] = float(match["weight"]) / scale
    return tuple(sorted(weights.items(), key=lambda item: tres_rank(item[0])))
