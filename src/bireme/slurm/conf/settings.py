"""slurm.conf's global keys: all of them as written, and typed those that change behaviour today.

Called by `loading`. Defaults are Slurm's (`core.model.cluster.Settings`).
Invariant: the raw mapping has Slurm's own spelling of every known key, whatever the file's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from bireme.core.limits.licences import parse_licences
from bireme.core.model.cluster import Settings
from bireme.slurm.conf.accounting import enforcement
from bireme.slurm.conf.diagnostics import Findings, Place
from bireme.slurm.conf.keys import GLOBAL_KEYS, REPEATABLE_KEYS
from bireme.slurm.conf.lines import Line
from bireme.slurm.conf.priority import priority_fields
from bireme.slurm.conf.records import KEYS_OF_LINES
from bireme.slurm.conf.scheduling import scheduling_policy
from bireme.slurm.conf.values import (
    exit_codes,
    limit,
    mebibytes_limit,
    minutes_as_s,
    names,
    positive,
    whole,
    yes_no,
)
from bireme.slurm.errors import SlurmSyntaxError

_SPELLING = {key.lower(): key for key in GLOBAL_KEYS}
_ENFORCE_WORDS = {"NO": "NO", "ALL": "ALL", "YES": "ALL", "ANY": "ANY"}
_MEMORY_DEFAULTS = ("DefMemPerCPU", "DefMemPerNode", "DefMemPerGPU")


class RawSettings:
    """Global keys as written, with where."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.places: dict[str, Place] = {}

    def add(self, key: str, value: str, place: Place, findings: Findings) -> None:
        if key in self.values and key in REPEATABLE_KEYS:
            self.values[key] += f",{value}"
            return
        if key in self.values and self.values[key] != value:
            findings.warn(place, f"{key} is already set at {self.places[key]}; the latest value is used")
        self.values[key] = value
        self.places[key] = place


def read_raw_settings(lines: Iterable[Line], findings: Findings) -> RawSettings:
    raw = RawSettings()
    for line in lines:
        for written, value in line.pairs:
            key = _SPELLING.get(written.lower())
            if key is None:
                findings.unknown_key(line.place, written, GLOBAL_KEYS, "", *KEYS_OF_LINES.values())
            else:
                raw.add(key, value, line.place, findings)
    return raw


def typed_settings(raw: RawSettings, findings: Findings) -> Settings:
    _refuse_exclusive(raw, _MEMORY_DEFAULTS, findings)
    _refuse_exclusive(raw, ("MaxMemPerCPU", "MaxMemPerNode"), findings)
    parsed: dict[str, object] = {}
    for field, (key, parse) in _FIELDS.items():
        if key in raw.values:
            try:
                parsed[field] = parse(raw.values[key])
            except SlurmSyntaxError as error:
                findings.error(raw.places[key], f"{key}={raw.values[key]}: {error}")
    parsed.update(_selection(raw.values))
    parsed.update(priority_fields(raw.values, raw.places, findings))
    try:
        parsed["policy"] = scheduling_policy(raw.values)
    except SlurmSyntaxError as error:
        key = str(error).partition("=")[0]  # each of its messages begins with the key at fault
        findings.error(raw.places[key], str(error))
    return Settings(**parsed)  # type: ignore[arg-type]  # _FIELDS pairs each field with a parser of its type


def _refuse_exclusive(raw: RawSettings, keys: Iterable[str], findings: Findings) -> None:
    given = [key for key in keys if key in raw.values]
    if len(given) > 1:
        findings.error(raw.places[given[-1]], f"{' and '.join(given)} exclude each other; keep one")


def _selection(values: Mapping[str, str]) -> dict[str, bool]:
    """What SelectType and its parameters mean: whole cores or single CPUs, memory counted or not."""
    words = values.get("SelectTypeParameters", "").upper().split(",")
    unit = next((word for word in words if word.startswith(("CR_CPU", "CR_CORE", "CR_SOCKET", "CR_MEMORY"))), "")
    if not unit:
        linear = values.get("SelectType", "").lower() == "select/linear"
        return {"select_by_core": True, "memory_is_consumable": not linear}
    return {"select_by_core": not unit.startswith("CR_CPU"), "memory_is_consumable": unit.endswith("MEMORY")}


def _enforce(text: str) -> str:
    word = _ENFORCE_WORDS.get(text.upper())
    if word is None:
        raise SlurmSyntaxError("one of NO, ANY, ALL")
    return word


def _licences(text: str) -> str:
    if parse_licences(text) is None:
        raise SlurmSyntaxError("licences are NAME[:COUNT],...")
    return text


def _kill_on_bad_exit(text: str) -> bool:
    return whole(text) != 0


def _paths(text: str) -> tuple[str, ...]:
    return tuple(path for path in text.split(",") if path and path.lower() != "none")


def _path(text: str) -> str:
    return "" if text.lower() == "none" else text


def _gather_frequency(text: str) -> int:
    """`30`, or `task=30,energy=60`."""
    for part in text.split(","):
        kind, equals, seconds = part.rpartition("=")
        if not equals or kind.lower() == "task":
            return whole(seconds)
    return 30


def _return_to_service(text: str) -> int:
    if text not in ("0", "1", "2"):
        raise SlurmSyntaxError("one of 0, 1, 2")
    return int(text)


_FIELDS: dict[str, tuple[str, Callable[[str], object]]] = {
    "kill_wait_s": ("KillWait", whole),
    "min_job_age_s": ("MinJobAge", whole),
    "max_array_size": ("MaxArraySize", whole),
    "max_job_count": ("MaxJobCount", positive),
    "max_tasks_per_node": ("MaxTasksPerNode", positive),
    "first_job_id": ("FirstJobId", positive),
    "max_job_id": ("MaxJobId", positive),
    "job_requeue": ("JobRequeue", yes_no),
    "requeue_exit": ("RequeueExit", exit_codes),
    "requeue_exit_hold": ("RequeueExitHold", exit_codes),
    "max_batch_requeue": ("MaxBatchRequeue", whole),
    "over_time_limit_s": ("OverTimeLimit", minutes_as_s),
    "kill_on_bad_exit": ("KillOnBadExit", _kill_on_bad_exit),
    "prolog": ("Prolog", _paths),
    "epilog": ("Epilog", _paths),
    "task_prolog": ("TaskProlog", _path),
    "task_epilog": ("TaskEpilog", _path),
    "prolog_flags": ("PrologFlags", names),
    "prolog_epilog_timeout_s": ("PrologEpilogTimeout", limit),
    "return_to_service": ("ReturnToService", _return_to_service),
    "default_memory_per_cpu_mib": ("DefMemPerCPU", mebibytes_limit),
    "default_memory_per_node_mib": ("DefMemPerNode", mebibytes_limit),
    "default_memory_per_gpu_mib": ("DefMemPerGPU", mebibytes_limit),
    "default_cpus_per_gpu": ("DefCpuPerGPU", positive),
    "max_memory_per_cpu_mib": ("MaxMemPerCPU", mebibytes_limit),
    "max_memory_per_node_mib": ("MaxMemPerNode", mebibytes_limit),
    "enforce_part_limits": ("EnforcePartLimits", _enforce),
    "account_gather_frequency_s": ("JobAcctGatherFrequency", _gather_frequency),
    "batch_start_timeout_s": ("BatchStartTimeout", whole),
    "slurmd_timeout_s": ("SlurmdTimeout", whole),
    "unkillable_step_timeout_s": ("UnkillableStepTimeout", whole),
    "unkillable_step_program": ("UnkillableStepProgram", _path),
    "inactive_limit_s": ("InactiveLimit", whole),
    "resv_over_run_s": ("ResvOverRun", minutes_as_s),
    "gres_types": ("GresTypes", names),
    "licenses": ("Licenses", _licences),
    "accounting_enforce": ("AccountingStorageEnforce", enforcement),
}
"""Field of `Settings` -> the key it comes from and how its value is read."""
