"""`#BIREME` lines of batch scripts: what a job asks of Bireme alone, and in which words mistakes are told."""

from __future__ import annotations

import pytest

from bireme.core.model.jobs import JobSpec, Owner
from bireme.slurm.options.batch import read_batch
from bireme.slurm.options.context import SubmitContext
from bireme.slurm.options.errors import OptionError
from bireme.slurm.understood import describe

CONTEXT = SubmitContext(
    owner=Owner(uid=1001, gid=1001, user="alice"),
    cwd="/home/alice",
    now=1.8e9,
    utc_offset=lambda at: 0.0,
    submit_host="login",
)


def spec_of(*lines: str) -> JobSpec:
    text = "\n".join(("#!/bin/bash", *lines, "train", ""))
    return read_batch(["train.sh"], text.encode(), CONTEXT).requests[0].spec


def refusal(*lines: str) -> str:
    with pytest.raises(OptionError) as caught:
        spec_of(*lines)
    return str(caught.value)


def test_a_job_says_where_its_checkpoints_lie_and_whether_it_is_started_again() -> None:
    spec = spec_of("#SBATCH --requeue", "#BIREME --checkpoint=out/%j --heal off", '#BIREME --heal="restart"')
    assert (spec.checkpoint_path, spec.heal, spec.requeue) == ("out/%j", "restart", True)
    told = dict(row for section in describe(spec).sections for row in section.rows)
    assert told["checkpoints"] == "out/%j"
    assert "started again" in told["heal"]


def test_without_such_lines_and_with_those_of_services_nothing_is_asked() -> None:
    assert spec_of("#SBATCH -n1") == spec_of("#SBATCH -n1", "#BIREME --replicas=2 --health=/")
    assert spec_of().heal == ""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("#BIREME --checkpiont=x", "train.sh: line 2: there is no flag --checkpiont; did you mean --checkpoint?"),
        ("#BIREME --heal=maybe", "train.sh: line 2: --heal=maybe: it is one of restart, off"),
        ("#BIREME --heal", "train.sh: line 2: option '--heal' requires an argument"),
        ("#BIREME --mem=4G", "train.sh: line 2: --mem is an option of sbatch: write it on a #SBATCH line"),
        ("#BIREME heal=restart", "train.sh: line 2: 'heal=restart' is no flag"),
        ("#BIREME --zzzzzzzz=1", "train.sh: line 2: there is no flag --zzzzzzzz; jobs have --checkpoint, --heal"),
        ("#BIREME --checkpoint=" + "x" * 5000, "train.sh: line 2: --checkpoint needs a path of 1 to 4096"),
        ("#BIREME --checkpoint=" + "x" * 70_000, "train.sh: line 2: a #BIREME line has at most 65536"),
    ],
)
def test_a_mistake_is_refused_with_its_line_and_what_would_do(line: str, said: str) -> None:
    assert refusal(line).startswith(said)
