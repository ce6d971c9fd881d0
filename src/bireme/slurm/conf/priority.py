"""slurm.conf's Priority* keys, and FairShareDampeningFactor, typed and checked.

Called by `settings`. What Slurm refuses at its start is refused here, with the line; so is an unknown flag, which
Slurm drops without a word and which then is missed for months.
Invariant: what comes back needs no further check by the core.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from bireme.core.model.accounts import tres_rank
from bireme.core.model.cluster import PrioritySettings
from bireme.slurm.conf.diagnostics import Findings, Place
from bireme.slurm.conf.values import minutes_as_s, positive, yes_no
from bireme.slurm.errors import SlurmSyntaxError

FLAGS = frozenset(
    (
        "ACCRUE_ALWAYS",
        "CALCULATE_RUNNING",
        "DEPTH_OBLIVIOUS",
        "FAIR_TREE",
        "INCR_ONLY",
        "MAX_TRES",
        "NO_FAIR_TREE",
        "NO_NORMAL_ALL",
        "NO_NORMAL_ASSOC",
        "NO_NORMAL_PART",
        "NO_NORMAL_QOS",
        "NO_NORMAL_TRES",
        "SMALL_RELATIVE_TO_TIME",
    )
)
RESET_PERIODS = ("NONE", "NOW", "DAILY", "WEEKLY", "MONTHLY", "QUARTERLY", "YEARLY")
LARGEST_WEIGHT = 2**32 - 1
_TYPES = {"priority/basic": False, "priority/multifactor": True}
_TRES = re.compile(r"cpu|mem|energy|node|billing|fs/disk|vmem|pages|(?:gres|license|bb|ic)/[^\s/=,]+", re.IGNORECASE)


def priority_fields(values: Mapping[str, str], places: Mapping[str, Place], findings: Findings) -> dict[str, object]:
    """Fields of `Settings` that the keys of the file set, `priority` among them."""
    own = _read(_OWN_FIELDS, values, places, findings)
    fields = _read(_USAGE_FIELDS, values, places, findings)
    settings = PrioritySettings(**own)  # type: ignore[arg-type]  # _OWN_FIELDS pairs each field with a parser of its type
    fields["priority"] = settings
    _refuse_endless_usage(settings, fields, places, findings)
    plugin = settings.site_factor_plugin
    if plugin and plugin.lower() != "site_factor/none":
        findings.warn(
            places["PrioritySiteFactorPlugin"],
            f"PrioritySiteFactorPlugin={plugin} is not applied; set a job's with 'scontrol update job=ID SiteFactor=N'",
        )
    return fields


def _read(
    table: Mapping[str, tuple[str, Callable[[str], object]]],
    values: Mapping[str, str],
    places: Mapping[str, Place],
    findings: Findings,
) -> dict[str, object]:
    parsed: dict[str, object] = {}
    for field, (key, parse) in table.items():
        if key in values:
            try:
                parsed[field] = parse(values[key])
            except SlurmSyntaxError as error:
                findings.error(places[key], f"{key}={values[key]}: {error}")
    return parsed


def _refuse_endless_usage(
    settings: PrioritySettings, fields: Mapping[str, object], places: Mapping[str, Place], findings: Findings
) -> None:
    endless = fields.get("priority_decay_half_life_s", 0) is None
    if settings.multifactor and endless and fields.get("priority_usage_reset_period", "NONE") == "NONE":
        findings.error(
            places["PriorityDecayHalfLife"],
            "without decay (PriorityDecayHalfLife=0) usage only grows; set PriorityUsageResetPeriod too",
        )


def _type(text: str) -> bool:
    if text.lower() not in _TYPES:
        raise SlurmSyntaxError("one of priority/basic, priority/multifactor")
    return _TYPES[text.lower()]


def _weight(text: str) -> int:
    if re.fullmatch(r"-[0-9]+", text):
        raise SlurmSyntaxError("a weight is not below zero")
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise SlurmSyntaxError(f"'{text}' is not a whole number")
    if int(text) > LARGEST_WEIGHT:
        raise SlurmSyntaxError(f"a weight is at most {LARGEST_WEIGHT}")
    return int(text)


def _tres_weights(text: str) -> tuple[tuple[str, float], ...]:
    weights: dict[str, float] = {}
    for part in text.split(","):
        if not part.strip():
            continue
        name, equals, written = part.strip().partition("=")
        if not _TRES.fullmatch(name) or not equals:
            raise SlurmSyntaxError(f"'{part}' is not TRES=WEIGHT with a TRES such as CPU, Mem, Node or GRES/gpu")
        try:
            weight = float(written)
        except ValueError as error:
            raise SlurmSyntaxError(f"'{written}' is not a weight for {name}") from error
        if not math.isfinite(weight):
            raise SlurmSyntaxError(f"'{written}' is not a weight for {name}")
        weights[_canonical(name)] = weight
    return tuple(sorted(weights.items(), key=lambda item: tres_rank(item[0])))


def _canonical(name: str) -> str:
    """`CPU` is cpu and `GRES/gpu` gres/gpu; what comes after the slash is the site's own spelling."""
    kind, slash, rest = name.partition("/")
    return kind.lower() + slash + rest


def _flags(text: str) -> tuple[str, ...]:
    words = [word for word in re.split(r"[,\s]+", text.upper()) if word]
    unknown = [word for word in words if word not in FLAGS]
    if unknown:
        raise SlurmSyntaxError(f"'{unknown[0]}' is no flag; there are {', '.join(sorted(FLAGS))}")
    return tuple(dict.fromkeys(words))


def _reset_period(text: str) -> str:
    if text.upper() not in RESET_PERIODS:
        raise SlurmSyntaxError(f"one of {', '.join(RESET_PERIODS)}")
    return text.upper()


def _decay(text: str) -> int | None:
    """0 is no decay."""
    return minutes_as_s(text) or None


def _period(text: str) -> int:
    seconds = None if text.startswith("-") else minutes_as_s(text)
    if not seconds:
        raise SlurmSyntaxError("a number of minutes above 0")
    return seconds


_OWN_FIELDS: dict[str, tuple[str, Callable[[str], object]]] = {
    "multifactor": ("PriorityType", _type),
    "calc_period_s": ("PriorityCalcPeriod", _period),
    "max_age_s": ("PriorityMaxAge", minutes_as_s),
    "favor_small": ("PriorityFavorSmall", yes_no),
    "weight_age": ("PriorityWeightAge", _weight),
    "weight_assoc": ("PriorityWeightAssoc", _weight),
    "weight_fair_share": ("PriorityWeightFairShare", _weight),
    "weight_job_size": ("PriorityWeightJobSize", _weight),
    "weight_partition": ("PriorityWeightPartition", _weight),
    "weight_qos": ("PriorityWeightQOS", _weight),
    "weight_tres": ("PriorityWeightTRES", _tres_weights),
    "parameters": ("PriorityParameters", str),
    "site_factor_plugin": ("PrioritySiteFactorPlugin", str),
    "site_factor_parameters": ("PrioritySiteFactorParameters", str),
}
"""Field of `PrioritySettings` -> the key it comes from and how its value is read."""

_USAGE_FIELDS: dict[str, tuple[str, Callable[[str], object]]] = {
    "priority_decay_half_life_s": ("PriorityDecayHalfLife", _decay),
    "priority_usage_reset_period": ("PriorityUsageResetPeriod", _reset_period),
    "priority_flags": ("PriorityFlags", _flags),
    "fair_share_dampening_factor": ("FairShareDampeningFactor", positive),
}
"""The same for those of `Settings` itself."""
