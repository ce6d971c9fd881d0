"""What Bireme understood of a service, in words: what `bireme explain chat.sh` says beyond the job that a replica is.

Pure, as `slurm/understood` is: a ServiceSpec in, sections or plain data out. It asks no cluster.
"""

from __future__ import annotations

from collections.abc import Iterator

from bireme.core.model.serving.probes import Probe
from bireme.core.model.serving.scaling import Measure, Scaling, ScalingTarget, Shift
from bireme.core.model.serving.services import Amount, ServiceSpec
from bireme.core.scaling.targets import targets_of, with_default_target
from bireme.slurm.serving.values import DAYS, PROBE_SHELL
from bireme.slurm.understood import Row, Section, describe

_MEASURED = {
    Measure.CONCURRENCY: "requests in flight",
    Measure.RATE: "requests a second",
}


def describe_service(spec: ServiceSpec) -> tuple[Section, ...]:
    """All of it, section by section; then what each replica gets."""
    sections = (
        Section("Service", tuple(_service_rows(spec))),
        Section("Probes", tuple(_probe_rows(spec))),
        Section("Scaling", tuple(_scaling_rows(spec.scaling, spec.routing.max_concurrency))),
        Section("Requests", tuple(_routing_rows(spec))),
        Section("Updates", tuple(_update_rows(spec))),
        *(_of_replica(section, spec) for section in describe(spec.job).sections),
    )
    return tuple(section for section in sections if section.rows)


def _of_replica(section: Section, spec: ServiceSpec) -> Section:
    """As of a job, but that it stays: without a time limit of its own it has the longest that there is."""
    if spec.job.time_limit_given or spec.job.time_limit_s is not None:
        return section
    longest = "the longest that its partition allows"
    rows = ((label, longest if label == "time limit" else text) for label, text in section.rows)
    return Section(section.title, tuple(rows))


def _service_rows(spec: ServiceSpec) -> Iterator[Row]:
    yield "name", spec.name
    yield "replicas", replicas_text(spec.scaling)
    yield "port", "$PORT, another one for each replica"


def replicas_text(scaling: Scaling) -> str:
    least, most = scaling.replicas_min, scaling.replicas_max
    if least == most:
        return f"{least}, always" if least else "none"
    return f"{least} to {most}, as the load needs"


def _probe_rows(spec: ServiceSpec) -> Iterator[Row]:
    startup = spec.probes.startup
    limit = duration_text(startup.period_s * startup.failure_threshold)
    yield "started when", f"{_asked(startup)}, asked every {duration_text(startup.period_s)}; it may take {limit}"
    yield "ready while", _asked_often(spec.probes.readiness, "gets no requests")
    if spec.probes.liveness is None:
        yield "alive", "while its script runs"
    else:
        yield "alive while", _asked_often(spec.probes.liveness, "is replaced")


def _asked(probe: Probe) -> str:
    if probe.path:
        return f"GET {probe.path} answers 200 to 399 within {duration_text(probe.timeout_s)}"
    if probe.command:
        return f"`{_command_text(probe.command)}` exits with 0 within {duration_text(probe.timeout_s)}"
    return "its port takes a connection"


def _command_text(command: tuple[str, ...]) -> str:
    """As it was written: the shell that runs it is understood."""
    return " ".join(command[2:] if command[:2] == PROBE_SHELL else command)


def _asked_often(probe: Probe, then: str) -> str:
    fails = f"{probe.failure_threshold} failures in a row" if probe.failure_threshold > 1 else "one failure"
    return f"{_asked(probe)}, asked every {duration_text(probe.period_s)}; after {fails} it {then}"


def _scaling_rows(scaling: Scaling, max_concurrency: int | None) -> Iterator[Row]:
    if scaling.replicas_min == scaling.replicas_max and not scaling.shifts:
        return
    for target in targets_of(with_default_target(scaling, max_concurrency)):
        yield "one replica for", target_text(target)
    for shift in scaling.shifts:
        yield "from", shift_text(shift)
    yield (
        "windows",
        (
            f"{duration_text(scaling.stable_window_s)}, and {duration_text(scaling.panic_window_s)} for bursts of "
            f"{scaling.panic_threshold:g} times what is ready"
        ),
    )
    yield "fewer", f"when no more were needed for {duration_text(scaling.down_delay_s)}"
    if scaling.replicas_min == 0:
        yield "none", f"after {duration_text(scaling.idle_s)} without a request; the next request wakes it"
    if scaling.standby:
        yield "standby", f"{scaling.standby} more than the load needs"


def target_text(target: ScalingTarget) -> str:
    return f"{target.value:g} {_MEASURED.get(target.measure, f'of {target.name}')}"


def shift_text(shift: Shift) -> str:
    """As one would write it: `Mon-Fri 08:00 min=4`."""
    bounds = [("min", shift.replicas_min), ("max", shift.replicas_max)]
    said = " ".join(f"{name}={value}" for name, value in bounds if value is not None)
    return f"{_days_text(shift.days)} {shift.minute // 60:02d}:{shift.minute % 60:02d} {said}".rstrip()


def _days_text(days: tuple[int, ...]) -> str:
    if len(days) == 7:
        return "daily"
    first, last = days[0], days[-1]
    if len(days) > 2 and days == tuple(range(first, last + 1)):
        return f"{DAYS[first]}-{DAYS[last]}"
    return ",".join(DAYS[day] for day in days)


def _routing_rows(spec: ServiceSpec) -> Iterator[Row]:
    routing = spec.routing
    at_once = "any number" if routing.max_concurrency is None else f"at most {routing.max_concurrency}"
    yield "at once", f"{at_once} for each replica"
    yield "queue", f"{routing.queue_limit} may wait, each {duration_text(routing.queue_timeout_s)} at most"
    first, idle = duration_text(routing.first_byte_timeout_s), duration_text(routing.idle_timeout_s)
    total = "" if routing.total_timeout_s is None else f", {duration_text(routing.total_timeout_s)} in all"
    yield "time limits", f"{first} to the first byte, {idle} between two pieces{total}"
    if routing.affinity_header or routing.affinity_cookie:
        by = [("header", routing.affinity_header), ("cookie", routing.affinity_cookie)]
        yield "same replica", " or ".join(f"by {kind} {name}" for kind, name in by if name)
    if routing.models:
        yield "models", ", ".join(routing.models)
    if routing.hosts:
        yield "host names", ", ".join(routing.hosts)
    if routing.body_limit is not None:
        yield "largest body", f"{routing.body_limit} bytes"


def _update_rows(spec: ServiceSpec) -> Iterator[Row]:
    updating = spec.updating
    yield (
        "meanwhile",
        f"at most {amount_text(updating.surge)} more than wanted, {amount_text(updating.unavailable)} fewer ready",
    )
    yield "given up", f"after {duration_text(updating.ready_within_s)} without progress; the one before comes back"
    if updating.canary_percent is not None:
        yield "canary", f"{updating.canary_percent}% of the requests, until promoted or rolled back"
    yield "drain", f"{duration_text(spec.drain_s)} for requests in flight"


def amount_text(amount: Amount) -> str:
    return f"{amount.number}%" if amount.percent else str(amount.number)


def duration_text(seconds: float) -> str:
    """As one would write it: `90s`, `15m`, `2h`, `500ms`."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:g}ms"
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0 and seconds != 60:
            return f"{int(seconds // size)}{unit}"
    return f"{seconds:g}s"
