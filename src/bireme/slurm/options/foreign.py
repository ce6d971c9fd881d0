"""`#PBS` and `#BSUB` lines in a batch script: what Slurm's compatibility reading makes of them.

Only the options that have a plain counterpart are translated into sbatch's; the others are reported by name, so that
nobody thinks they had an effect. Slurm reads them after the `#SBATCH` lines, so they win over those.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bireme.slurm.script import Directive, Directives, ForeignDirective

Translation = Callable[[str], list[str]]


@dataclass(frozen=True, slots=True)
class Translated:
    """sbatch's words for the lines that have some, and remarks about the others."""

    directives: tuple[Directive, ...]
    warnings: tuple[str, ...]


def translate(lines: Iterable[ForeignDirective]) -> Translated:
    directives: list[Directive] = []
    warnings: list[str] = []
    for line in lines:
        words, unknown = _translate_line(line)
        if words:
            directives.append(Directive(line.line, tuple(words)))
        warnings += [
            f"line {line.line}: #{line.dialect} {option} has no counterpart and is ignored" for option in unknown
        ]
    return Translated(tuple(directives), tuple(warnings))


def with_foreign(directives: Directives) -> Directives:
    """The directives with the translated `#PBS` and `#BSUB` lines after the first component's own."""
    translated = translate(directives.foreign)
    first, *others = directives.components
    return Directives(((*first, *translated.directives), *others), (), (*directives.warnings, *translated.warnings))


def _translate_line(line: ForeignDirective) -> tuple[list[str], list[str]]:
    table = _PBS if line.dialect == "PBS" else _BSUB
    words: list[str] = []
    unknown: list[str] = []
    rest = list(line.words)
    while rest:
        letter, value = rest[0][:2], rest[0][2:]
        rest = rest[1:]
        if letter not in table:
            unknown.append(letter + value)
            rest = rest[1:] if rest and not rest[0].startswith("-") else rest
            continue
        if letter in _TAKES_VALUE[line.dialect] and not value and rest:
            value, rest = rest[0], rest[1:]
        translated = table[letter](value)
        words += translated
        if not translated:
            unknown.append(f"{letter} {value}".strip())
    return words, unknown


def _to(option: str) -> Translation:
    return lambda value: [f"--{option}={value}"]


def _flag(*words: str) -> Translation:
    return lambda value: list(words)


def _pbs_resources(text: str) -> list[str]:
    """`-l nodes=2:ppn=8,walltime=1:00:00,mem=4gb`."""
    words: list[str] = []
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name == "nodes":
            words += _pbs_nodes(value)
        elif name in _PBS_RESOURCES:
            words.append(f"--{_PBS_RESOURCES[name]}={value}")
    return words


def _pbs_nodes(text: str) -> list[str]:
    """`2:ppn=8` is two nodes and sixteen tasks; a name is a node."""
    count, *properties = text.split(":")
    if not count.isdecimal():
        return [f"--nodelist={count}"]
    words = [f"--nodes={count}"]
    for each in properties:
        match = re.fullmatch(r"ppn=([0-9]{1,6})", each)
        if match is not None:
            words.append(f"--ntasks={int(count[:9]) * int(match[1])}")
        elif re.fullmatch(r"gpus=[0-9]{1,6}", each):
            words.append(f"--gres=gpu:{each[5:]}")
    return words


def _pbs_mail(text: str) -> list[str]:
    types = [name for letter, name in (("a", "FAIL"), ("b", "BEGIN"), ("e", "END")) if letter in text]
    return [f"--mail-type={','.join(types) or 'NONE'}"]


def _pbs_requeue(text: str) -> list[str]:
    return ["--requeue" if text == "y" else "--no-requeue"]


def _lsf_array(text: str) -> list[str]:
    """`-J name[1-8]`."""
    match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](%[0-9]+)?", text)
    if match is None:
        return [f"--job-name={text}"]
    return [f"--job-name={match[1]}", f"--array={match[2]}{match[3] or ''}"]


def _lsf_time(text: str) -> list[str]:
    """LSF writes hours:minutes where Slurm reads minutes:seconds."""
    return [f"--time={text}:00" if ":" in text else f"--time={text}"]


_PBS_RESOURCES = {"walltime": "time", "mem": "mem", "pmem": "mem-per-cpu", "ncpus": "cpus-per-task", "file": "tmp"}
_PBS: dict[str, Translation] = {
    "-A": _to("account"),
    "-a": _to("begin"),
    "-e": _to("error"),
    "-h": _flag("--hold"),
    "-J": _to("array"),
    "-l": _pbs_resources,
    "-M": _to("mail-user"),
    "-m": _pbs_mail,
    "-N": _to("job-name"),
    "-o": _to("output"),
    "-p": _to("nice"),
    "-q": _to("partition"),
    "-r": _pbs_requeue,
    "-t": _to("array"),
    "-V": _flag("--export=ALL"),
    "-v": _to("export"),
}
_BSUB: dict[str, Translation] = {
    "-c": _to("time"),
    "-e": _to("error"),
    "-J": _lsf_array,
    "-m": _to("nodelist"),
    "-M": _to("mem-per-cpu"),
    "-n": _to("ntasks"),
    "-o": _to("output"),
    "-q": _to("partition"),
    "-r": _flag("--requeue"),
    "-W": _lsf_time,
    "-x": _flag("--exclusive"),
}
_TAKES_VALUE = {"PBS": frozenset(_PBS) - {"-h", "-V"}, "BSUB": frozenset(_BSUB) - {"-r", "-x"}}
