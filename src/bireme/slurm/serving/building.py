"""From a script, its `#BIREME` lines and a command line to a ServiceSpec: all of `bireme serve` but files and cluster.

`cli/serving` and the SDK read the script's file and call `read_service`; `bireme explain` does so too and stops there.
The replica's JobSpec is what sbatch would have submitted. Invariant: what a batch job can ask for and a service cannot
(an array, a dependency, a begin time ...) is refused, never dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, cast

from bireme.core.model.jobs import Dependencies, JobSpec
from bireme.core.model.serving.probes import Probe, Probes
from bireme.core.model.serving.scaling import Measure, Scaling, ScalingTarget
from bireme.core.model.serving.services import Routing, ServiceSpec, Updating
from bireme.core.scaling.checking import problems
from bireme.core.scaling.targets import HEADROOM
from bireme.slurm.options.batch import read_batch
from bireme.slurm.options.context import SubmitContext
from bireme.slurm.options.errors import OptionError
from bireme.slurm.options.layers import Options
from bireme.slurm.script import read_script
from bireme.slurm.serving.flags import BY_NAME
from bireme.slurm.serving.reading import Line, Lines, read_lines
from bireme.slurm.serving.values import Question, Written, suggested_name

_TARGETS = ("target-concurrency", "target-rps", "target", "query")
_AFTER_STARTUP_S = 600.0
"""So much longer than its start-up may take, a revision may be without progress, where --ready-within is not given."""

Values = Mapping[str, Any]
"""By flag: what was read; of one that counts every time a tuple."""


@dataclass(frozen=True, slots=True)
class ServiceSubmission:
    """What one `bireme serve` asks for."""

    spec: ServiceSpec
    environment: dict[str, str]
    script: str
    options: Options
    """sbatch's: --wait, --parsable, --quiet."""
    notices: tuple[str, ...]
    """What to say on standard error, once."""
    given: Mapping[str, tuple[str, ...]]
    """The flags that were given, as they were written, after precedence."""


def read_service(line: Line, script: bytes | None, context: SubmitContext, script_path: str = "") -> ServiceSubmission:
    """The service that a command line asks for. `script` is what its file holds (None with --wrap)."""
    lines = Lines(())
    if script is not None:
        lines = read_lines(read_script(script), line.script.rpartition("/")[2] or "(stdin)")
    batch = read_batch(line.sbatch, script, context, script_path, is_job=False)
    if len(batch.requests) != 1:
        raise OptionError("a replica is one job: a service cannot be heterogeneous (hetjob, `:`)")
    (request,) = batch.requests
    refuse_what_only_jobs_have(request.spec, batch.options)
    written = settled(lines.flags, line.flags)
    name = _name(written, request.spec, batch.options, line.script)
    spec = build(name, request.spec, values_of(written))
    unapplied = ("--requeue is not applied: a replica that is lost is replaced by a new one",)
    notices = (*lines.warnings, *batch.notices, *(unapplied if request.spec.requeue else ()), *_cautions(spec))
    given = {flag: tuple(each.text for each in texts) for flag, texts in written.items()}
    return ServiceSubmission(spec, request.environment, batch.script, batch.options, notices, given)


def _cautions(spec: ServiceSpec) -> Iterable[str]:
    """What is applied as it was written, and hardly meant."""
    most, policy = spec.routing.max_concurrency, spec.scaling
    if most is None or policy.replicas_min == policy.replicas_max:
        return
    for target in policy.targets:
        if target.measure is Measure.CONCURRENCY and target.value > most:
            yield (
                f"--target-concurrency={target.value:g} is above --max-concurrency={most}: requests wait in the queue "
                f"before another replica is asked for; {max(most * HEADROOM, 1.0):g} would not let them wait"
            )


def settled(script: Iterable[Written], line: Iterable[Written]) -> dict[str, tuple[Written, ...]]:
    """By flag: what counts. The command line wins over the script, and the last one wins where one alone counts."""
    found: dict[str, tuple[Written, ...]] = {}
    for layer in (script, line):
        here: dict[str, tuple[Written, ...]] = {}
        for each in layer:
            here[each.flag] = (*here.get(each.flag, ()), each) if BY_NAME[each.flag].many else (each,)
        found.update(here)
    return found


def values_of(written: Mapping[str, tuple[Written, ...]]) -> Values:
    return {
        name: tuple(BY_NAME[name].read(each) for each in texts) if BY_NAME[name].many else BY_NAME[name].read(texts[-1])
        for name, texts in written.items()
    }


def _name(written: Mapping[str, tuple[Written, ...]], job: JobSpec, options: Options, script: str) -> str:
    if "name" in written:
        return cast(str, BY_NAME["name"].read(written["name"][-1]))
    return suggested_name(job.name if "job-name" in options or not script else script)


def build(name: str, job: JobSpec, values: Values) -> ServiceSpec:
    """The service of this name whose replicas are such jobs."""
    scaling = replace(Scaling(targets=tuple(_targets(values))), **_placed(values, "scaling"))
    if "replicas" in values:
        least, most = values["replicas"]
        scaling = replace(scaling, replicas_min=least, replicas_max=most)
    probes = _probes(values)
    updating = replace(Updating(), **_placed(values, "updating"))
    if "ready-within" not in values:
        startup = probes.startup.period_s * probes.startup.failure_threshold
        updating = replace(updating, ready_within_s=max(updating.ready_within_s, startup + _AFTER_STARTUP_S))
    spec = ServiceSpec(
        name=name,
        job=replace(job, name=name),
        probes=probes,
        scaling=scaling,
        updating=updating,
        routing=replace(Routing(), **_placed(values, "routing")),
        **_placed(values, ""),
    )
    _check(spec)
    return spec


def _placed(values: Values, part: str) -> dict[str, Any]:
    """The fields of one part of a ServiceSpec (empty: of itself) that flags fill as they are."""
    places = {name: BY_NAME[name].place.rpartition(".") for name in values if BY_NAME[name].place}
    return {field: values[name] for name, (where, _, field) in places.items() if where == part}


def _targets(values: Values) -> Iterable[ScalingTarget]:
    for name in _TARGETS:
        found = values.get(name, ())
        yield from found if BY_NAME[name].many else [found] if found else ()


def _probes(values: Values) -> Probes:
    standard, health = Probes(), values.get("health")
    asked: dict[str, Question | None] = {name: values.get(name, health) for name in ("startup", "readiness")}
    startup = asked["startup"].applied_to(standard.startup) if asked["startup"] else standard.startup
    if "startup-timeout" in values:
        if any(name == "failure_threshold" for name, _ in (asked["startup"] or Question()).timings):
            raise OptionError("--startup-timeout and failures= of --startup say the same: give one of them")
        startup = replace(startup, failure_threshold=max(1, ceil(values["startup-timeout"] / startup.period_s)))
    liveness: Question | None = values.get("liveness")
    return Probes(
        startup=startup,
        readiness=asked["readiness"].applied_to(standard.readiness) if asked["readiness"] else standard.readiness,
        liveness=None if liveness is None or liveness.off else liveness.applied_to(Probe()),
    )


def _check(spec: ServiceSpec) -> None:
    """What only several flags together show."""
    for wrong in problems(spec.scaling):
        raise OptionError(wrong)
    updating = spec.updating
    if not updating.surge.number and not updating.unavailable.number:
        raise OptionError("--surge=0 and --unavailable=0 leave an update no way to go: one of them has to be above 0")


def refuse_what_only_jobs_have(job: JobSpec, options: Options) -> None:
    """What would make no sense of a replica that is started again and again."""
    for is_asked, option, instead in (
        (job.array is not None, "array", "--replicas says how many there are"),
        (job.dependencies != Dependencies(), "dependency", "a service is there until it is stopped"),
        (job.begin_at is not None, "begin", "--at says how many there are from when on"),
        (job.deadline_at is not None, "deadline", "a service is there until it is stopped"),
        (job.hold, "hold", "`bireme service scale NAME 0` keeps it without replicas"),
        (options.flag("test-only"), "test-only", "`bireme explain SCRIPT` tells what it asks for"),
        (options.asked("clusters"), "clusters", "name a partition of that cluster (--partition)"),
    ):
        if is_asked:
            raise OptionError(f"--{option} is nothing for a service: {instead}")
