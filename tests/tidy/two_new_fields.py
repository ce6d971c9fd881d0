"""Two fields are invented: each is declared, and has one row. Everything that commands do with a field must be there.

A program of its own (`test_job_fields` runs it), since the declaration and the rows have to be there before any other
module of Bireme is imported. Prints nothing; ends with an AssertionError where a place does not know the fields.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from bireme.core.model import jobs
from bireme.core.model.field_rules import Until, carried, planned, rules_of
from bireme.slurm.job_fields import identity
from bireme.slurm.job_fields.row import Form, JobField, Sacct, Squeue
from bireme.slurm.options.catalogue.rows import ALL, option
from bireme.slurm.options.catalogue.table import Kind

# -- the declarations and the rows: all that a new field takes, but for its use --------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec(jobs.JobSpec):
    berth: str = carried("", until=Until.FORGOTTEN)
    oars: int | None = planned(None)


jobs.JobSpec = JobSpec
jobs.RULES = rules_of(JobSpec)
# fmt: off
identity.IDENTITY_ROWS = (
    *identity.IDENTITY_ROWS,
    JobField("berth", Form.TEXT,
        option("", "berth=NAME", ALL, Kind.TEXT, identity.IDENTITY, "where it is to lie", env="BERTH"),
        record="berth", says="where it is to lie", squeue=Squeue("berth", "BERTH", "!"), sacct=Sacct("Berth", 12),
        show="Berth", json="berth", accounting="mooring/berth", update=("Berth",), inherited=True),
    JobField("oars", Form.COUNT,
        option("", "oars=N", ALL, Kind.COUNT, identity.IDENTITY, "how many oars"),
        record="oars", says="how many oars", squeue=Squeue("oars", "OARS", missing="none"), show="Oars", json="oars",
        update=("NumOars",), least=1, most=170),
)
# fmt: on

# -- what commands and engines make of them --------------------------------------------------------------------------

from bireme.api.routes.orders import _read_changes  # noqa: E402
from bireme.commands.reports import CommandError  # noqa: E402
from bireme.commands.scontrol.job_keys import job_change  # noqa: E402
from bireme.core.jobs import requests  # noqa: E402
from bireme.core.model.cluster import ClusterConfig  # noqa: E402
from bireme.core.model.events import JobSubmitted  # noqa: E402
from bireme.core.model.refusals import Refusal  # noqa: E402
from bireme.engines.slurm.accounting import ended_job  # noqa: E402
from bireme.engines.slurm.jobs import JobReader  # noqa: E402
from bireme.engines.slurm.submission import batch_words, order_words  # noqa: E402
from bireme.ports import Order  # noqa: E402
from bireme.slurm import records  # noqa: E402
from bireme.slurm.formats.accounting import choose_columns, parsable_lines  # noqa: E402
from bireme.slurm.formats.fields import plan_named, plan_percent  # noqa: E402
from bireme.slurm.formats.layout import parse_named, parse_percent  # noqa: E402
from bireme.slurm.formats.sacct_fields import SACCT_ALIASES, SACCT_FIELDS, rows_of  # noqa: E402
from bireme.slurm.formats.show.job import job_block  # noqa: E402
from bireme.slurm.formats.squeue_fields import JOB_FIELDS  # noqa: E402
from bireme.slurm.formats.values import Context  # noqa: E402
from bireme.slurm.json_shapes.accounting import accounting_shapes  # noqa: E402
from bireme.slurm.json_shapes.jobs import job_shape  # noqa: E402
from bireme.slurm.options.batch import read_batch  # noqa: E402
from bireme.slurm.options.catalogue.help import help_text  # noqa: E402
from bireme.slurm.options.catalogue.table import Command  # noqa: E402
from bireme.slurm.options.context import SubmitContext  # noqa: E402
from bireme.slurm.records.jobs import job_record  # noqa: E402
from bireme.store import codec  # noqa: E402
from bireme.store.planning_input import decode_input, encode_input  # noqa: E402
from bireme.testing.scenario import Scenario  # noqa: E402

CONTEXT = Context(now=0.0, stamp=str)


def submitted(*words: str, **variables: str) -> list[JobSpec]:
    ann = jobs.Owner(uid=1, gid=1, user="ann")
    context = SubmitContext(owner=ann, now=0.0, utc_offset=lambda _: 0.0, environment=variables)
    return [request.spec for request in read_batch([*words, "job.sh"], b"#!/bin/sh\n", context).requests]


# sbatch's options, its variables, its help; components of a heterogeneous job
(spec,) = submitted("--berth=b7", "--oars=30")
assert (spec.berth, spec.oars) == ("b7", 30)
assert submitted(SBATCH_BERTH="quay")[0].berth == "quay"
assert "--berth=NAME" in help_text(Command.SBATCH)
assert [each.berth for each in submitted("--berth=b7", ":", "-n2")] == ["b7", "b7"]

# the journal
world = Scenario("1x8")
world.submit("job", berth="b7", oars=30)
job = world.job("job")
event = JobSubmitted(1, job.spec, 0, None, ())
assert codec.from_plain(JobSubmitted, codec.loads(codec.dumps(codec.to_plain(event)))) == event

# the record, squeue, scontrol show, --json
record = job_record(world.state, job, world.now)
assert (record["berth"], record["oars"]) == ("b7", 30)
assert records.JOB_FIELDS["berth"] == "where it is to lie"
nobody = {**record, "berth": "", "oars": None}
named = plan_named(parse_named("berth:8,oars:8"), JOB_FIELDS, "")
assert (named.header(), named.needs()) == ("BERTH   OARS    ", {"berth", "oars"})
assert named.lines([record, nobody], CONTEXT) == ["b7      30      ", "(null)  none    "]
assert plan_percent(parse_percent("%!"), JOB_FIELDS, "").lines([record], CONTEXT) == ["b7"]
assert {"Berth=b7", "Oars=30"} <= set(job_block(record, CONTEXT))
assert not [line for line in job_block(nobody, CONTEXT) if "Berth" in line or "Oars" in line]
assert (job_shape(record, {})["berth"], job_shape(record, {})["oars"]) == ("b7", 30)

# changes, in the command, the API and the core
assert job_change("berth", "b8") == {"berth": "b8"}
assert _read_changes(job_change("NumOars", "170")) == {"oars": 170}
with pytest.raises(CommandError, match="Invalid NumOars value: 171"):
    job_change("NumOars", "171")


def update(**changes: object) -> JobSpec:
    world.ask(lambda state, caller, target: requests.update(state, caller, target, changes, world.now), "job")
    return world.job("job").spec


assert update(berth="b8", oars=31).oars == 31
world.settle()
assert update(berth="b9").berth == "b9"
with pytest.raises(Refusal):
    update(oars=32)

# a snapshot for planning has what is planned with
kept = decode_input(encode_input(world.state, world.now, "1")).state.jobs[1].spec
assert (kept.berth, kept.oars) == ("", 31)

# the history
world.finish("job")
assert update(berth="b7").berth == "b7"
ended = job_record(world.state, world.job("job"), world.now)
columns = choose_columns("JobID,Berth", SACCT_FIELDS, SACCT_ALIASES)
assert parsable_lines(columns, rows_of(ended, steps=False), CONTEXT, header=False) == ["1|b7"]
(shape,) = accounting_shapes([ended])
assert shape["mooring"] == {"berth": "b7"}

# a Slurm beside us: what it is told, and what is read of it
assert {"--berth=b7", "--oars=31"} <= set(batch_words([kept, job.spec], ""))
changed = Order(verb="update", target="1", changes={"berth": "b8", "oars": 2})
assert order_words(changed) == ["scontrol", "update", "JobId=1", "Berth=b8", "NumOars=2"]
reader = JobReader(ClusterConfig(nodes=(), partitions=()), str)
seen = reader.sighting(job_shape(record, {})).spec
assert (seen.berth, seen.oars) == ("b7", 30)
told = ended_job(shape, lambda _: (1, 1))
assert told is not None
assert told.spec.berth == "b7"
