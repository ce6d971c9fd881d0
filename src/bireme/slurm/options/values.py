"""What the value of an option means: one parser for each `Kind`, with Slurm's words for what it refuses.

`parse_value` turns an option as written into a typed value (a number, a `NodeCount`, GRES requests ...). It knows
nothing of other options: combinations are judged in `job` and `step`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from bireme.core.model.distribution import Distribution
from bireme.core.model.queue_numbers import LARGEST_NICE, LARGEST_PRIORITY
from bireme.slurm.arrays import parse_array
from bireme.slurm.constraints import parse_constraint
from bireme.slurm.containers import CHECKS, ContainerError
from bireme.slurm.dependencies import parse_dependencies
from bireme.slurm.distribution import parse_distribution
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.gres import parse_gpus, parse_gres
from bireme.slurm.hostlist import expand
from bireme.slurm.options.catalogue import words
from bireme.slurm.options.catalogue.table import EXPEDITE, Command, Kind
from bireme.slurm.options.errors import OptionError, Severity, invalid, invalid_number, refused
from bireme.slurm.options.getopt import Given
from bireme.slurm.signals import parse_signal, parse_warning_signal
from bireme.slurm.sizes import parse_memory
from bireme.slurm.times import Infinite, UtcOffset, parse_job_time_limit, parse_time_limit, parse_timestamp

_TIME_FORMS = "minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS"
LARGEST_ARRAY = 4_000_001
"""The most that any cluster's MaxArraySize allows; the cluster itself judges by its own."""
_LARGEST_COUNT = 2**31 - 1
_TRES_FOR_TASK = re.compile(r"cpu[:=](?P<cpus>[0-9]{1,9})|gres[/:](?P<gres>[^=]+?)(?:[:=](?P<count>[0-9]+))?")
_NICE_DEFAULT = 100


@dataclass(frozen=True, slots=True)
class Moment:
    """What reading a value may depend on besides its text."""

    command: Command
    now: float
    utc_offset: UtcOffset
    plane_size: int | None = None
    """SLURM_DIST_PLANESIZE."""


@dataclass(frozen=True, slots=True)
class NodeCount:
    minimum: int
    maximum: int | None


@dataclass(frozen=True, slots=True)
class NodeShape:
    """`-B sockets:cores:threads`; None where any number will do."""

    sockets: int | None = None
    cores: int | None = None
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class Switches:
    count: int
    wait_s: int | None = None


@dataclass(frozen=True, slots=True)
class TresPerTask:
    """`--tres-per-task`: CPUs, and the rest as GRES text."""

    cpus: int | None
    gres: str


def parse_value(given: Given, moment: Moment) -> object:
    """The typed value of an option as written; raises `OptionError`."""
    option = given.option
    if option.kind is Kind.FLAG:
        return option.name != f"no-{option.alias_of}"
    try:
        return PARSERS[option.kind](given.option.name, given.value, moment)
    except OptionError:
        raise
    except SlurmSyntaxError as error:
        raise invalid(option.name) from error


def _number(name: str, text: str | None, lowest: int) -> int:
    bare = (text or "").strip()
    number = int(bare) if re.fullmatch(r"[+-]?[0-9]{1,12}", bare) else -1
    if not lowest <= number <= _LARGEST_COUNT:
        raise invalid_number(text or "", name)
    return number


def _count(name: str, text: str | None, moment: Moment) -> int:
    return _number(f"--{name}", text, 1)


def _from_zero(name: str, text: str | None, moment: Moment) -> int:
    return 1 if text is None else _number(f"--{name}", text, 0)


def _text(name: str, text: str | None, moment: Moment) -> str:
    if name in ("constraint", "prefer") and text:
        try:
            parse_constraint(text)
        except SlurmSyntaxError as error:
            failed = words.SUBMISSION_FAILED[moment.command]
            raise refused(f"{failed}: Invalid feature specification") from error
    return text or ""


def _container(name: str, text: str | None, moment: Moment) -> str:
    try:
        return CHECKS[name](text or "")
    except ContainerError as error:
        raise OptionError(*(f"pyxis: {line}" for line in str(error).splitlines())) from error


def _either(name: str, text: str | None, moment: Moment) -> bool:
    """`text`: only of a variable, which says yes or no to its option."""
    says_yes = not name.startswith("no-") and name != "container-readonly"
    return says_yes is (text != "no")


def _array(name: str, text: str | None, moment: Moment) -> object:
    try:
        return parse_array(text or "", LARGEST_ARRAY)
    except SlurmSyntaxError as error:
        raise refused("Batch job submission failed: Invalid job array specification") from error


def _dependency(name: str, text: str | None, moment: Moment) -> object:
    try:
        return parse_dependencies(text or "")
    except SlurmSyntaxError as error:
        raise refused(f"{words.SUBMISSION_FAILED[moment.command]}: Job dependency problem") from error


def _hosts(name: str, text: str | None, moment: Moment) -> tuple[str, ...]:
    try:
        return tuple(expand(text or ""))
    except SlurmSyntaxError as error:
        raise refused(f"{words.SUBMISSION_FAILED[moment.command]}: Invalid node name specified") from error


def _distribution(name: str, text: str | None, moment: Moment) -> Distribution:
    if (text or "").lower().startswith("plane") and "=" not in (text or "") and not moment.plane_size:
        raise OptionError("Invalid plane size or size not specified", f"Invalid --{name} specification")
    return parse_distribution(text or "", moment.plane_size)


def _job_time(name: str, text: str | None, moment: Moment) -> int | None:
    try:
        return parse_job_time_limit(text or "")
    except SlurmSyntaxError as error:
        raise OptionError(f"Invalid --{name} specification", f"{text!r} is none of {_TIME_FORMS}") from error


def _exclusive(name: str, text: str | None, moment: Moment) -> str:
    return _one_of(name, (text or "exclusive").lower(), ("exclusive", "user", "mcs", "topo"))


def _one_of(name: str, text: str, accepted: tuple[str, ...]) -> str:
    if text not in accepted:
        raise invalid(name)
    return text


def _gres(name: str, text: str | None, moment: Moment) -> object:
    return _resources(name, text, moment, parse_gres)


def _gpus(name: str, text: str | None, moment: Moment) -> object:
    return _resources(name, text, moment, parse_gpus)


def _resources(name: str, text: str | None, moment: Moment, parse: Callable[[str], object]) -> object:
    if (text or "").lower() == "help":
        raise OptionError("Valid gres options are:", "gpu", severity=Severity.ANSWER, exit_code=0)
    try:
        return parse(text or "")
    except SlurmSyntaxError as error:
        raise refused("Invalid generic resource (gres) specification") from error


def _gres_flags(name: str, text: str | None, moment: Moment) -> tuple[str, ...]:
    flags = tuple(flag.lower() for flag in (text or "").split(","))
    return tuple(_one_of(name, flag, words.GRES_FLAGS) for flag in flags)


def _tres_per_task(name: str, text: str | None, moment: Moment) -> TresPerTask:
    cpus: int | None = None
    gres: list[str] = []
    for part in (text or "").split(","):
        match = re.fullmatch(
            r"(?:cpu[:=](?P<cpus>[0-9]{1,9}))|(?:gres/(?P<gres>[^=]+?)(?:[:=](?P<count>[0-9]+))?)", part
        )
        if match is None:
            raise invalid(name)
        if match["cpus"] is not None:
            cpus = _number(f"--{name}", match["cpus"], 1)
        else:
            gres.append(match["gres"] + (f":{match['count']}" if match["count"] else ""))
    _resources(name, ",".join(gres), moment, parse_gres)
    return TresPerTask(cpus, ",".join(gres))


def _hint(name: str, text: str | None, moment: Moment) -> str:
    if text == "help":
        raise OptionError(words.HINT_HELP, severity=Severity.ANSWER, exit_code=1)
    if text not in words.HINTS:
        raise OptionError(f'unrecognized --hint argument "{text}", see --hint=help', exit_code=1)
    return text


def _immediate(name: str, text: str | None, moment: Moment) -> int:
    return 1 if text is None else _number("immediate", text, 0)


def _kill_signal(name: str, text: str | None, moment: Moment) -> int:
    return 15 if text is None else parse_signal(text)


def _mail_type(name: str, text: str | None, moment: Moment) -> tuple[str, ...]:
    types: list[str] = []
    for word in (text or "").upper().split(","):
        if word == "NONE":
            types.clear()
        elif word in words.MAIL_GROUPS:
            types.extend(words.MAIL_GROUPS[word])
        else:
            types.append(_one_of(name, word, words.MAIL_TYPES))
    return tuple(dict.fromkeys(types))


def _memory(name: str, text: str | None, moment: Moment) -> int:
    return parse_memory(text or "")


def _cpu_bind(name: str, text: str | None, moment: Moment) -> str:
    if text == "help":
        raise OptionError(words.CPU_BIND_HELP, severity=Severity.ANSWER, exit_code=0)
    if not re.fullmatch(words.CPU_BIND, text or "", re.IGNORECASE):
        raise OptionError(
            "Failed to parse --cpu-bind= values.",
            severity=Severity.FATAL,
            exit_code=1,
            preface=(f'{moment.command}: error: unrecognized --cpu-bind argument "{text}"',),
        )
    return text or ""


def _gpu_bind(name: str, text: str | None, moment: Moment) -> str:
    if not re.fullmatch(words.GPU_BIND, text or "", re.IGNORECASE):
        raise OptionError(f"Invalid --gpu-bind argument: gpu:{text}")
    return text or ""


def _mem_bind(name: str, text: str | None, moment: Moment) -> str:
    if text == "help":
        raise OptionError(words.MEM_BIND_HELP, severity=Severity.ANSWER, exit_code=0)
    if not re.fullmatch(words.MEM_BIND, text or "", re.IGNORECASE):
        raise OptionError(f'unrecognized --mem-bind argument "{text}"')
    return text or ""


def _accel_bind(name: str, text: str | None, moment: Moment) -> str:
    if not re.fullmatch("[gnv]+", text or ""):
        raise invalid(name)
    return text or ""


def _moment(name: str, text: str | None, moment: Moment) -> float:
    try:
        return parse_timestamp(text or "", moment.now, moment.utc_offset)
    except SlurmSyntaxError as error:
        preface = (f"Invalid time specification (pos=0): {text}",)
        raise OptionError(f"Invalid --{name} specification", preface=preface) from error


def _mpi(name: str, text: str | None, moment: Moment) -> str:
    if text == "list":
        listed = "\n".join(["MPI plugin types are...", *(f"\t{kind}" for kind in words.MPI_TYPES)])
        raise OptionError(listed, severity=Severity.ANSWER, exit_code=0)
    if text not in words.MPI_TYPES:
        hints = ("programs that speak PMIx are not served: torch needs no --mpi, an MPI with PMI --mpi=pmi2",)
        more = hints if (text or "").startswith("pmix") else ()
        raise OptionError(f"Invalid MPI type '{text}', --mpi=list for acceptable types", *more, exit_code=1)
    return text


def _nice(name: str, text: str | None, moment: Moment) -> int:
    if text is None:
        return _NICE_DEFAULT
    match = re.match(r"\s*([+-]?[0-9]{1,12})", text)
    value = int(match[1]) if match else 0  # Slurm reads what looks like a number, else 0
    if abs(value) > LARGEST_NICE:
        raise OptionError(f"Invalid --nice value, out of range (+/- {LARGEST_NICE})")
    return value


def _nodes(name: str, text: str | None, moment: Moment) -> NodeCount:
    whole = text or ""
    low_text, dash, high_text = whole.partition("-")
    low = _node_count(low_text) if low_text or not dash else 1
    if dash and not high_text:
        raise OptionError(f"Maximum node count -1 is less than minimum node count {low}")
    high = _node_count(high_text) if dash else low
    if high < low:
        raise OptionError(f"Maximum node count {high} is less than minimum node count {low}")
    return NodeCount(low, high)


def _node_count(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,9})([km]?)", text.strip(), re.IGNORECASE)
    if match is None:
        raise OptionError(f'"{text}" is not a valid node count')
    return int(match[1]) * {"": 1, "k": 1024, "m": 1024 * 1024}[match[2].lower()]


def _node_shape(name: str, text: str | None, moment: Moment) -> NodeShape:
    parts = (text or "").split(":")
    if len(parts) > 3:
        raise invalid(name)
    ordinals = ("first", "second", "third")
    numbers = [
        None if part == "*" else _number(f"{which} arg of -B", part.partition("-")[0], 1)
        for part, which in zip(parts, ordinals)
    ]
    return NodeShape(*numbers)


def _no_kill(name: str, text: str | None, moment: Moment) -> bool:
    return _one_of(name, (text or "set").lower(), ("set", "off", "no")) == "set"


def _requeue(name: str, text: str | None, moment: Moment) -> bool:
    return _one_of(name, text or EXPEDITE, (EXPEDITE,)) == EXPEDITE


def _open_mode(name: str, text: str | None, moment: Moment) -> bool:
    """True for append."""
    if text not in ("a", "t", "append", "truncate"):
        raise invalid(name)
    return text.startswith("a")


def _priority(name: str, text: str | None, moment: Moment) -> int:
    if (text or "").upper() == "TOP":
        return LARGEST_PRIORITY
    match = re.match(r"[+-]?[0-9]{1,20}", (text or "").strip())
    number = int(match[0]) if match else 0
    if number < 0:
        raise OptionError("Priority must be >= 0")
    if number > LARGEST_PRIORITY:
        raise OptionError(f"Priority must be < {LARGEST_PRIORITY + 1}")
    return number


def _profile(name: str, text: str | None, moment: Moment) -> str:
    for word in (text or "").lower().split(","):
        if word not in ("all", "none", "energy", "task", "lustre", "filesystem", "network"):
            raise OptionError(f"invalid --profile={text} option")
    return text or ""


def _propagate(name: str, text: str | None, moment: Moment) -> str:
    for word in (text or "ALL").upper().split(","):
        if word.removeprefix("RLIMIT_") not in words.RLIMITS:
            raise OptionError(f"Bad rlimit name: {word.lower()}", f"--propagate={text} is not valid.", exit_code=1)
    return text or "ALL"


def _signal(name: str, text: str | None, moment: Moment) -> object:
    warning = parse_warning_signal(text or "")
    if warning.batch_only and moment.command is not Command.SBATCH:
        raise invalid(name)
    return warning


def _switches(name: str, text: str | None, moment: Moment) -> Switches:
    count_text, at, wait_text = (text or "").partition("@")
    count = _number(f"--{name}", count_text, 1)
    if not at:
        return Switches(count)
    wait = parse_time_limit(wait_text)
    return Switches(count, None if isinstance(wait, Infinite) else wait)


def _user_env(name: str, text: str | None, moment: Moment) -> str:
    if not re.fullmatch(r"[0-9]*[SsLl]?", text or ""):
        raise invalid(name)
    return text or ""


def _yes_no(name: str, text: str | None, moment: Moment) -> bool:
    return _one_of(name, (text or "yes").lower(), ("yes", "no")) == "yes"


def _zero_or_one(name: str, text: str | None, moment: Moment) -> bool:
    return _one_of(name, text or "1", ("0", "1")) == "1"


def _het_group(name: str, text: str | None, moment: Moment) -> tuple[int, ...]:
    """The components of `0,2-3`."""
    components: set[int] = set()
    for part in (text or "").split(","):
        match = re.fullmatch(r"([0-9]{1,3})(?:-([0-9]{1,3}))?", part)
        if match is None:
            raise invalid(name)
        components.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(components))


Parser = Callable[[str, str | None, Moment], object]
PARSERS: dict[Kind, Parser] = {
    Kind.TEXT: _text,
    Kind.COUNT: _count,
    Kind.NUMBER: _from_zero,
    Kind.ARRAY: _array,
    Kind.BIND: _accel_bind,
    Kind.CPU_BIND: _cpu_bind,
    Kind.DEPENDENCY: _dependency,
    Kind.DISTRIBUTION: _distribution,
    Kind.CONTAINER: _container,
    Kind.DURATION: _job_time,
    Kind.EITHER: _either,
    Kind.EXCLUSIVE: _exclusive,
    Kind.GPU_BIND: _gpu_bind,
    Kind.GPUS: _gpus,
    Kind.GRES: _gres,
    Kind.GRES_FLAGS: _gres_flags,
    Kind.HET_GROUP: _het_group,
    Kind.HINT: _hint,
    Kind.HOSTS: _hosts,
    Kind.IMMEDIATE: _immediate,
    Kind.KILL_SIGNAL: _kill_signal,
    Kind.MAIL_TYPE: _mail_type,
    Kind.MEMORY: _memory,
    Kind.MEM_BIND: _mem_bind,
    Kind.MOMENT: _moment,
    Kind.MPI: _mpi,
    Kind.NICE: _nice,
    Kind.NODES: _nodes,
    Kind.NODE_SHAPE: _node_shape,
    Kind.NO_KILL: _no_kill,
    Kind.REQUEUE: _requeue,
    Kind.OPEN_MODE: _open_mode,
    Kind.PRIORITY: _priority,
    Kind.PROFILE: _profile,
    Kind.PROPAGATE: _propagate,
    Kind.SIGNAL: _signal,
    Kind.SIZE: _memory,
    Kind.SWITCHES: _switches,
    Kind.TRES_PER_TASK: _tres_per_task,
    Kind.USER_ENV: _user_env,
    Kind.YES_NO: _yes_no,
    Kind.ZERO_OR_ONE: _zero_or_one,
}
