"""What a row of the table of job fields is: where one field of a job is named in Slurm, and what form its value has.

A row is data. How a form is read or written in a place is said once by the consumer of that place; a field that needs
more than its form names the place in `own`, and the consumer has a function for it, under the same name.
Invariant (tested): a place that is named in `own` has exactly one function, and no function is there for another.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import NamedTuple

from bireme.slurm.options.catalogue.table import Option

RESOURCES_PREFIX = "resources."
LARGEST_COUNT = 2**31 - 2
LARGEST_TIME_S = 2**31 * 60


class Form(StrEnum):
    """What a field's value is in the model."""

    TEXT = "text"
    FEATURES = "features"
    """A text with a syntax of its own, which is checked and kept as it was written."""
    WORDS = "words"
    """A tuple of words, written with commas."""
    HOSTS = "hosts"
    """A tuple of node names, written as a hostlist."""
    NUMBER = "number"
    """A whole number that says something even when it is 0."""
    COUNT = "count"
    """A number that may be missing (None); where Slurm has no word for missing, 0 is."""
    MEMORY = "memory"
    """MiB; missing is None or 0."""
    FLAG = "flag"
    CHOICE = "choice"
    """True, False, or nothing said (None)."""
    LIMIT = "limit"
    """Seconds; None is no limit."""
    MOMENT = "moment"
    """Seconds since the epoch, or None."""
    GRES = "gres"
    GPUS = "gpus"
    """GRES, of which the option names GPUs alone."""
    OTHER = "other"
    """A value of its own kind: every place has a function for it."""


class Place(StrEnum):
    """Where a field is read or written: each is one consumer of the table."""

    GIVEN = "given"
    """From options to the specification (`options/given`)."""
    RECORD = "record"
    """In the job's record (`records/jobs`)."""
    SQUEUE = "squeue"
    SACCT = "sacct"
    SHOW = "show"
    """`scontrol show job` (`formats/show/job`)."""
    JSON = "json"
    """`squeue --json` (`json_shapes/jobs`)."""
    ACCOUNTING = "accounting"
    """`sacct --json` (`json_shapes/accounting`)."""
    UPDATE = "update"
    """From a key of `scontrol update` to a change (`commands/scontrol/job_keys`)."""
    PASSED = "passed"
    """An option of the sbatch that the Slurm engine calls (`engines/slurm/submission`)."""
    ORDERED = "ordered"
    """A key of the `scontrol update` that the Slurm engine calls (same module)."""
    SEEN = "seen"
    """Read from Slurm's queue (`engines/slurm/asked`)."""


class Squeue(NamedTuple):
    """A column of squeue."""

    name: str
    """For -O, lower case."""
    header: str
    letter: str = ""
    """For -o; empty when only -O has it."""
    missing: str = "(null)"
    """What is shown where there is nothing."""


class Sacct(NamedTuple):
    """A column of sacct."""

    name: str
    width: int
    on_steps: bool = False
    """The lines of steps repeat it; otherwise they are blank."""


@dataclass(frozen=True, slots=True)
class JobField:
    """One row: a field of a job. What is empty or None, the field does not have."""

    path: str
    """Of the model: `comment` of JobSpec, `resources.switches` of its ResourceRequest."""
    form: Form
    option: Option | None = None
    """The option of sbatch, srun and salloc that sets it; further ones stand beside the row."""
    _: KW_ONLY
    record: str = ""
    """Its name in records: the API, the history, what commands read."""
    says: str = ""
    """What that means, for users of the API."""
    squeue: Squeue | None = None
    sacct: Sacct | None = None
    show: str = ""
    """Its key in `scontrol show job`."""
    json: str = ""
    """Its key in `squeue --json`, written by ours and read from Slurm's."""
    accounting: str = ""
    """Its path in `sacct --json`, written by ours and read from Slurm's: `comment/job`."""
    update: tuple[str, ...] = ()
    """The keys of `scontrol update` that set it; the first is what Slurm is told."""
    changed_as: str = ""
    """Its name in a change, where only a part of it changes."""
    least: int | None = None
    most: int | None = None
    """Within which range it may be changed; both None: it is no number."""
    hidden: str = ""
    """Why Slurm's commands do not show it, of a field that has no record."""
    inherited: bool = False
    """A component of a heterogeneous job has it from the one before, unless it has its own."""
    passed: bool = True
    """The Slurm engine gives its option to sbatch."""
    seen: bool = True
    """The Slurm engine reads it from Slurm's queue, by its key there."""
    own: frozenset[Place] = frozenset()
    """Places where its form is not enough."""

    @property
    def name(self) -> str:
        """The attribute of JobSpec or ResourceRequest."""
        return self.path.removeprefix(RESOURCES_PREFIX)

    @property
    def of_resources(self) -> bool:
        return self.path.startswith(RESOURCES_PREFIX)

    @property
    def shown_form(self) -> Form:
        """The form of its value in a record: what a function of its own made of it is shown as it is."""
        return Form.TEXT if Place.RECORD in self.own else self.form

    @property
    def change(self) -> str:
        """The field's name among the changes of an update."""
        return self.changed_as or self.name


Row = JobField | Option
"""A line of the table: a field, or an option that sets no field by itself."""


def own(places: str) -> frozenset[Place]:
    """The places where a field has functions of its own: `own("record json")`."""
    return frozenset(map(Place, places.split()))
