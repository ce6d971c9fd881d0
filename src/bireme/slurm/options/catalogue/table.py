"""What an option is, and how one is found by name: the types behind `catalogue`.

An `Option` is one row: its names, whether it takes a value, which commands and environment variables know it, and
whether Bireme applies it. Rows are data; reading them is `getopt`'s job, giving them meaning is `values`'.
Invariant: within one command no two rows share a long name or a short letter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Command(StrEnum):
    SBATCH = "sbatch"
    SRUN = "srun"
    SALLOC = "salloc"


class Arity(StrEnum):
    """Whether an option takes a value."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


EXPEDITE = "expedite"
"""The word of `--requeue`."""


class Kind(StrEnum):
    """What a value means: `values.PARSERS` has one parser for each."""

    FLAG = "flag"
    TEXT = "text"
    COUNT = "count"
    """A whole number from 1."""
    NUMBER = "number"
    """A whole number from 0."""
    ARRAY = "array"
    BIND = "bind"
    CPU_BIND = "cpu-bind"
    DEPENDENCY = "dependency"
    DISTRIBUTION = "distribution"
    CONTAINER = "container"
    """A text in the words of `slurm/containers`, which Pyxis refuses where it is not."""
    DURATION = "duration"
    EITHER = "either"
    """One of two options that say yes and no to the same thing (`--container-writable`, `--container-readonly`)."""
    EXCLUSIVE = "exclusive"
    GPU_BIND = "gpu-bind"
    GPUS = "gpus"
    GRES = "gres"
    GRES_FLAGS = "gres-flags"
    HET_GROUP = "het-group"
    HINT = "hint"
    HOSTS = "hosts"
    IMMEDIATE = "immediate"
    KILL_SIGNAL = "kill-signal"
    MAIL_TYPE = "mail-type"
    MEMORY = "memory"
    MEM_BIND = "mem-bind"
    MOMENT = "moment"
    MPI = "mpi"
    NICE = "nice"
    NODES = "nodes"
    NODE_SHAPE = "node-shape"
    NO_KILL = "no-kill"
    OPEN_MODE = "open-mode"
    PRIORITY = "priority"
    PROFILE = "profile"
    PROPAGATE = "propagate"
    REQUEUE = "requeue"
    SIGNAL = "signal"
    SIZE = "size"
    SWITCHES = "switches"
    TRES_PER_TASK = "tres-per-task"
    USER_ENV = "user-env"
    YES_NO = "yes-no"
    ZERO_OR_ONE = "zero-or-one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One row of the catalogue."""

    name: str
    short: str = ""
    arity: Arity
    argument: str = ""
    """How the value is written, for --help."""
    kind: Kind
    commands: frozenset[Command]
    variables: Mapping[Command, tuple[str, ...]]
    """Environment variables that set it, weakest first."""
    summary: str
    section: str
    ignored: str = ""
    """Empty: applied. Otherwise why it is accepted and not applied yet."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Engine (or `ENGINE step`, for steps in a job) -> the same where it is otherwise there; empty: applied."""
    alias_of: str = ""

    @property
    def key(self) -> str:
        """The name under which its value is kept: an alias sets what it stands for."""
        return self.alias_of or self.name

    @property
    def honoured(self) -> bool:
        return not self.ignored

    @property
    def honoured_everywhere(self) -> bool:
        return not self.ignored and not any(self.elsewhere.values())


class OptionTable:
    """The options of one command, found by long name (or an unambiguous beginning of one) and by short letter."""

    def __init__(self, command: Command, options: Iterable[Option]) -> None:
        self.command = command
        self.options = tuple(sorted((o for o in options if command in o.commands), key=lambda o: o.name))
        self._by_name = {option.name: option for option in self.options}
        self._by_short = {option.short: option for option in self.options if option.short}
        shorts = [option.short for option in self.options if option.short]
        assert len(self._by_name) == len(self.options), f"{command}: a long name is listed twice"
        assert len(self._by_short) == len(shorts), f"{command}: a short letter is listed twice"

    def __getitem__(self, name: str) -> Option:
        return self._by_name[name]

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def with_letter(self, letter: str) -> Option | None:
        return self._by_short.get(letter)

    def matching(self, beginning: str) -> tuple[Option, ...]:
        """The options a long name may mean: the exact one alone, or all that begin so."""
        exact = self._by_name.get(beginning)
        if exact is not None:
            return (exact,)
        found = tuple(option for option in self.options if option.name.startswith(beginning))
        # getopt_long does not call it ambiguous when every candidate sets the same thing.
        if found and len({option.key for option in found}) == 1:
            return found[:1]
        return found
