"""Detectors over single figures of a GPU or a node: each a row that says what it sees, for how long, and what it means.

`judge` is called with the newest figures of one subject and the streaks of before. What a subject's like do (GPUs of
the same model) is `Peers`. Delay: `holds_s` of the row, and one round of the gatherer. Pure.

Invariant: a figure that is missing is no trouble: the row says None, and nothing begins or ends by it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_high

from bireme.core.faults.detection.streaks import Streak, extended
from bireme.core.faults.detection.thresholds import Thresholds
from bireme.core.model import observations as o
from bireme.core.model.finding.findings import Gravity, Place, Quote, Trouble

Values = Mapping[str, float]
Key = tuple[str, str]
"""A row's name and a place's key."""

HARD_LIMITS = 0x8 | 0x20 | 0x40 | 0x80
"""NVML's reasons: slowdown by hardware, by heat as software or hardware sees it, by the power supply (brake)."""
_HEAT = 0x20 | 0x40
_BUSY_PERCENT = 50.0
_FEW = 3
"""Of so many alike the usual can be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The newest of one GPU or node."""

    place: Place
    at: float
    values: Values
    model: str = ""


@dataclass(frozen=True, slots=True)
class Peers:
    """What GPUs of one model usually do; None: too few are known."""

    clock_mhz: float | None = None
    """Of busy ones."""
    lanes: float | None = None
    generation: float | None = None
    """Of busy ones: an idle link sleeps."""


def peers_of(figures: Sequence[Figures]) -> dict[str, Peers]:
    """By model."""
    alike: dict[str, list[Values]] = {}
    for each in figures:
        if each.model:
            alike.setdefault(each.model, []).append(each.values)
    return {
        model: Peers(
            _usual(each["gpu_sm_clock"] for each in all_ if _busy(each) and "gpu_sm_clock" in each),
            _usual(each["gpu_pcie_width"] for each in all_ if each.get("gpu_pcie_width")),
            _usual(each["gpu_pcie_generation"] for each in all_ if _busy(each) and each.get("gpu_pcie_generation")),
        )
        for model, all_ in alike.items()
    }


def _usual(values: Iterator[float]) -> float | None:
    known = list(values)
    return median_high(known) if len(known) >= _FEW else None


def _busy(values: Values) -> bool:
    return values.get("gpu_util", 0.0) >= _BUSY_PERCENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing that can be wrong with a figure."""

    name: str
    """`DETECTOR` or `DETECTOR.WHAT`: the detector is what is switched off and what findings carry."""
    sees: Callable[[Values, Peers, Thresholds], bool | None]
    holds_s: Callable[[Thresholds], float]
    gravity: Gravity
    cause: str
    title: str
    """With `{which}` and figures by their names."""
    remedy: str
    quoted: tuple[str, ...]
    """Figures that are the evidence."""
    who: str = "platform"
    lasts: bool = False
    detector: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "detector", self.name.partition(".")[0])


def _over(metric: str, limit: Callable[[Thresholds], float]) -> Callable[[Values, Peers, Thresholds], bool | None]:
    def sees(values: Values, peers: Peers, thresholds: Thresholds) -> bool | None:
        return values[metric] > limit(thresholds) if metric in values else None

    return sees


def _throttled(values: Values, peers: Peers, thresholds: Thresholds) -> bool | None:
    """Held down by heat or by the power supply while it works, and slower than its like for it."""
    if "gpu_throttle" not in values or "gpu_sm_clock" not in values or "gpu_util" not in values:
        return None
    if not (_busy(values) and int(values["gpu_throttle"]) & HARD_LIMITS):
        return False
    if peers.clock_mhz is None:
        return None
    return values["gpu_sm_clock"] < peers.clock_mhz * (1.0 - thresholds.throttle_percent / 100.0)


def _narrow(values: Values, peers: Peers, thresholds: Thresholds) -> bool | None:
    lanes = values.get("gpu_pcie_width")
    return lanes < peers.lanes if lanes and peers.lanes is not None else None


def _old_generation(values: Values, peers: Peers, thresholds: Thresholds) -> bool | None:
    if not _busy(values) or not values.get("gpu_pcie_generation") or peers.generation is None:
        return None
    return values["gpu_pcie_generation"] < peers.generation


def _silent(values: Values, peers: Peers, thresholds: Thresholds) -> bool | None:
    return values["gpu_answers"] == 0.0 if "gpu_answers" in values else None


def _drifts(values: Values, peers: Peers, thresholds: Thresholds) -> bool | None:
    """An offset is told only where clocks differ; a node that tells of anything else has the right time."""
    return abs(values.get("node_clock_offset", 0.0)) > thresholds.clock_ms


GPU_ROWS = (
    Row(
        name="ecc",
        sees=_over("gpu_ecc_uncorrected", lambda t: 0.0),
        holds_s=lambda t: 0.0,
        gravity=Gravity.BROKEN,
        cause="gpu_ecc_error",
        title="{which} met a memory error that it could not correct",
        remedy="Reset the GPU when nothing runs on it (nvidia-smi -r); replace it if errors come again.",
        quoted=("gpu_ecc_uncorrected", "gpu_rows_remapped_uncorrected"),
        lasts=True,
    ),
    Row(
        name="ecc.remap",
        sees=_over("gpu_row_remap_failure", lambda t: 0.0),
        holds_s=lambda t: 0.0,
        gravity=Gravity.BROKEN,
        cause="gpu_ecc_error",
        title="{which} could not replace a row of its memory",
        remedy="Replace the card: its spare rows are used up.",
        quoted=("gpu_row_remap_failure", "gpu_rows_remapped_uncorrected", "gpu_rows_remapped_corrected"),
        who="vendor",
        lasts=True,
    ),
    Row(
        name="ecc.pending",
        sees=_over("gpu_row_remap_pending", lambda t: 0.0),
        holds_s=lambda t: 0.0,
        gravity=Gravity.NOTE,
        cause="gpu_ecc_error",
        title="{which} waits for a reset to replace a row of its memory",
        remedy="Reset it when it is free: nvidia-smi -r.",
        quoted=("gpu_row_remap_pending",),
    ),
    Row(
        name="off_the_bus",
        sees=_silent,
        holds_s=lambda t: 0.0,
        gravity=Gravity.BROKEN,
        cause="gpu_fell_off_bus",
        title="{which} does not answer: its driver hangs, or it is off the bus",
        remedy="dmesg on the node says which; restart the node, then look at power, seating and riser.",
        quoted=("gpu_answers",),
    ),
    Row(
        name="throttle",
        sees=_throttled,
        holds_s=lambda t: t.throttle_s,
        gravity=Gravity.DEGRADED,
        cause="gpu_throttled",
        title="{which} is held down by heat or power, and slower than its like",
        remedy="Look at fans, filters, coolant and power supplies of the node; nvidia-smi -q -d PERFORMANCE tells.",
        quoted=("gpu_sm_clock", "gpu_throttle", "gpu_temperature", "gpu_power"),
    ),
    Row(
        name="pcie.lanes",
        sees=_narrow,
        holds_s=lambda t: t.pcie_s,
        gravity=Gravity.DEGRADED,
        cause="pcie_degraded",
        title="{which} has fewer PCIe lanes than its like",
        remedy="Reseat the card or its riser; a slot with fewer lanes is dismissed: bireme findings dismiss.",
        quoted=("gpu_pcie_width",),
    ),
    Row(
        name="pcie.generation",
        sees=_old_generation,
        holds_s=lambda t: t.pcie_s,
        gravity=Gravity.DEGRADED,
        cause="pcie_degraded",
        title="{which} works over an older PCIe generation than its like",
        remedy="Look at the BIOS's setting of the slot, then reseat the card or its riser.",
        quoted=("gpu_pcie_generation",),
    ),
    Row(
        name="pcie.replays",
        sees=_over("gpu_pcie_replays", lambda t: t.pcie_replays_per_min / 60.0),
        holds_s=lambda t: t.pcie_s,
        gravity=Gravity.DEGRADED,
        cause="pcie_degraded",
        title="{which} sends packets over PCIe again and again",
        remedy="Reseat the card or its riser, and look at the node's lines of AER in dmesg.",
        quoted=("gpu_pcie_replays",),
    ),
    Row(
        name="nvlink.crc",
        sees=_over("gpu_nvlink_crc_errors", lambda t: t.nvlink_crc_per_s),
        holds_s=lambda t: t.nvlink_s,
        gravity=Gravity.DEGRADED,
        cause="nvlink_error",
        title="{which} has checksum errors on its NVLinks",
        remedy="nvidia-smi nvlink -e says which link; reseat the card or its bridge, else ask the vendor.",
        quoted=("gpu_nvlink_crc_errors", "gpu_nvlink_replays"),
    ),
    Row(
        name="nvlink",
        sees=_over("gpu_nvlink_recoveries", lambda t: 0.0),
        holds_s=lambda t: t.nvlink_s,
        gravity=Gravity.DEGRADED,
        cause="nvlink_error",
        title="NVLinks of {which} have to be trained again and again",
        remedy="nvidia-smi nvlink -e says which link; reseat the card or its bridge, else ask the vendor.",
        quoted=("gpu_nvlink_recoveries",),
    ),
    Row(
        name="stray",
        sees=_over("gpu_unowned_memory", lambda t: t.stray_mib),
        holds_s=lambda t: t.stray_s,
        gravity=Gravity.NOTE,
        cause="gpu_out_of_memory",
        title="{which} is used by processes that belong to no job",
        remedy="nvidia-smi on the node names them: end them, or start them as a job. Jobs there lack that memory.",
        quoted=("gpu_unowned_memory", "gpu_processes"),
    ),
)
NODE_ROWS = (
    Row(
        name="clock",
        sees=_drifts,
        holds_s=lambda t: t.clock_s,
        gravity=Gravity.DEGRADED,
        cause="clock_drift",
        title="Its clock is off, by the daemon's",
        remedy="Look at chronyd or ntpd on the node (chronyc tracking); Kerberos, munge and logs go wrong by it.",
        quoted=("node_clock_offset",),
    ),
)


def judge(
    rows: Sequence[Row],
    figures: Figures,
    peers: Peers,
    before: Mapping[Key, Streak],
    thresholds: Thresholds,
    gap_s: float,
    standing: Container[str] | None = None,
) -> tuple[dict[Key, Streak], list[o.Observation]]:
    """The streaks after, and what is seen or gone. `gap_s`: for so long a figure may be missing; `standing`: rows of
    which it is worth saying that they are over, None: all."""
    after: dict[Key, Streak] = {}
    seen: list[o.Observation] = []
    place_key = figures.place.key
    for row in rows:
        if row.detector in thresholds.off:
            continue
        holds = row.sees(figures.values, peers, thresholds)
        if holds is False:
            if standing is None or row.name in standing:
                why = "it is not so any more"
                seen.append(o.TroubleGone(detector=row.name, place=figures.place, at=figures.at, why=why))
            continue
        key = row.name, place_key
        streak = extended(before.get(key), figures.at, holds, gap_s)
        if streak is not None:
            after[key] = streak
            if holds and streak.lasted_s >= row.holds_s(thresholds):
                seen.append(o.TroubleSeen(_trouble(row, figures, streak), figures.at))
    return after, seen


def _trouble(row: Row, figures: Figures, streak: Streak) -> Trouble:
    place = figures.place
    which = f"GPU {place.gpu}" if place.gpu is not None else f"GPU {place.uuid}"
    told = ", ".join(f"{name}={figures.values[name]:g}" for name in row.quoted if name in figures.values)
    return Trouble(
        detector=row.name,
        place=place,
        gravity=row.gravity,
        cause=row.cause,
        title=row.title.format(which=which),
        since=streak.since,
        quotes=(Quote(text=told, source="series", at=figures.at, node=place.node),) if told else (),
        remedy=row.remedy,
        who=row.who,
        lasts=row.lasts,
    )
