"""`scontrol show config`: every key of slurm.conf with its value or Slurm's default, as Slurm prints them.

Only words; what the daemon alone knows (boot time, next job id, version) comes in as `facts`. Called by scontrol.
Invariant: one `Key = value` line for each key Slurm 22.05 prints, in Slurm's order, then known keys it does not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bireme.core.model.cluster import ClusterConfig
from bireme.slurm.conf.keys import GLOBAL_KEYS, NULL, SHOWN, SHOWN_FOR_MULTIFACTOR, Shown
from bireme.slurm.conf.values import minutes_as_s, yes_no
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.times import format_elapsed

_MEMORY_KEYS = {"DefMemPerNode": ("DefMemPerCPU", "DefMemPerGPU"), "MaxMemPerNode": ("MaxMemPerCPU",)}
"""Slurm prints one line for keys that exclude each other, under the name of the one that is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonFacts:
    """What only the running daemon knows. Times as Slurm prints them (2026-01-31T12:00:00)."""

    now: str
    boot_time: str
    next_job_id: int
    version: str
    cgroup: Mapping[str, str] | None = None
    """cgroup.conf as read; None when there is none."""


def render_config(config: ClusterConfig, facts: DaemonFacts) -> str:
    """The text, without the line about the controller's health that scontrol adds."""
    lines = [f"Configuration data as of {facts.now}"]
    lines += [f"{key:<23} = {value}".rstrip(" ") if value else f"{key:<23} = " for key, value in _rows(config, facts)]
    if facts.cgroup:
        lines += ["", "Cgroup Support Configuration:"]
        lines += [f"{key:<23} = {facts.cgroup[key]}" for key in sorted(facts.cgroup)]
    return "\n".join(lines) + "\n"


def _rows(config: ClusterConfig, facts: DaemonFacts) -> Iterator[tuple[str, str]]:
    inserted = {
        "BurstBufferType": ("BOOT_TIME", facts.boot_time),
        "HealthCheckInterval": ("HASH_VAL", "Match"),
        "NodeFeaturesPlugins": ("NEXT_JOB_ID", str(facts.next_job_id)),
        "SrunEpilog": ("SLURM_VERSION", facts.version),
        "MaxStepCount": ("MaxNodeCount", config.raw.get("MaxNodeCount", str(len(config.nodes)))),
        "JobFileAppend": ("JobDefaults", _job_defaults(config.raw)),
    }
    if _is_multifactor(config.raw):
        inserted["FederationParameters"] = ("FairShareDampeningFactor", config.raw.get("FairShareDampeningFactor", "1"))
    raw = {**config.raw, **_counted(config)}
    for key, kind, default in _shown_keys(config.raw):
        if key in inserted:
            if key == "NodeFeaturesPlugins":
                yield "MULTIPLE_SLURMD", "Yes" if _several_nodes_a_host(config) else "No"
            if key == "SrunEpilog":
                yield "SLURM_CONF", config.source or NULL
            yield inserted[key]
        yield from _row(key, kind, default, raw)
    shown = {key for key, _, _ in (*SHOWN, *SHOWN_FOR_MULTIFACTOR)} | {name for name, _ in inserted.values()}
    shown.add("DefCpuPerGPU")
    hidden = {name for names in _MEMORY_KEYS.values() for name in names}
    for key in sorted(set(config.raw) & GLOBAL_KEYS - shown - hidden, key=str.lower):
        if not key.endswith("Pass"):
            yield key, config.raw[key]


def _shown_keys(raw: Mapping[str, str]) -> Iterator[tuple[str, Shown, str]]:
    for row in SHOWN:
        if row[0] == "PriorityType" and _is_multifactor(raw):
            yield from SHOWN_FOR_MULTIFACTOR
        else:
            yield row


def _is_multifactor(raw: Mapping[str, str]) -> bool:
    return raw.get("PriorityType", "").lower() == "priority/multifactor"


def _counted(config: ClusterConfig) -> dict[str, str]:
    """Keys whose value Slurm works out: what is always counted stands before what the file adds."""
    default = next(default for key, _, default in SHOWN if key == "AccountingStorageTRES")
    tres = dict.fromkeys((*default.split(","), *filter(None, config.raw.get("AccountingStorageTRES", "").split(","))))
    messages = config.raw.get("MaxDBDMsgs") or str(max(10_000, 2 * _max_jobs(config.raw) + 4 * len(config.nodes)))
    return {"AccountingStorageTRES": ",".join(tres), "MaxDBDMsgs": messages}


def _max_jobs(raw: Mapping[str, str]) -> int:
    text = raw.get("MaxJobCount", "")
    return int(text) if text.isdigit() else 10_000


def _row(key: str, kind: Shown, default: str, raw: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if key == "SlurmctldHost":
        for index, host in enumerate(raw.get(key, raw.get("ControlMachine", NULL)).split(",")):
            yield f"SlurmctldHost[{index}]", host
        return
    for other in _MEMORY_KEYS.get(key, ()):
        if other in raw:
            yield other, raw[other]
            return
    written = raw.get(key)
    text = default if written is None else _printed(written, kind)
    if key in ("SlurmUser", "SlurmdUser") and text == "root":
        text = "root(0)"
    name = "UsePam" if key == "UsePAM" else key
    yield name, text + _unit(text, kind)


def _printed(written: str, kind: Shown) -> str:
    """A value as Slurm would print it back; one that is not of its kind is printed as written."""
    if kind is Shown.UPPER:
        return written.upper()
    if kind is Shown.LOWER:
        return written.lower()
    try:
        if kind is Shown.YES_NO:
            return "Yes" if yes_no(written) else "No"
        if kind is Shown.ZERO_ONE:
            return "1" if yes_no(written) else "0"
        if kind is Shown.DURATION:
            seconds = minutes_as_s(written)
            return "UNLIMITED" if seconds is None else format_elapsed(seconds)
    except SlurmSyntaxError:
        return written
    return written


def _unit(text: str, kind: Shown) -> str:
    if kind in (Shown.SECONDS, Shown.MINUTES, Shown.USEC, Shown.PERCENT, Shown.NODES_PER_MINUTE) and text.isdigit():
        return f" {kind.value}"
    return ""


def _job_defaults(raw: Mapping[str, str]) -> str:
    given = [f"{key}={raw[key]}" for key in ("DefCpuPerGPU", "DefMemPerGPU") if key in raw]
    return ",".join(given) or raw.get("JobDefaults", NULL)


def _several_nodes_a_host(config: ClusterConfig) -> bool:
    hosts = [node.hostname or node.name for node in config.nodes]
    return len(set(hosts)) < len(hosts)
