"""A script line by line: what is read as an option, what it means, and what only looks like one."""

from __future__ import annotations

from bireme.slurm.annotated import annotate, asks_for_service

SCRIPT = """#!/bin/bash
#SBATCH --job-name=train --gpus=8
# SBATCH --time=1:00:00
#SBATCH --gpus=4

#SBATCH --colour=red
#BIREME --heal=restart
srun python train.py
#SBATCH --mem=1G
"""


def test_every_line_is_told_once_in_order() -> None:
    lines = annotate(SCRIPT)
    assert [line.number for line in lines] == list(range(1, 10))
    assert [line.text for line in lines] == SCRIPT.split("\n")[:-1]
    assert [line.kind for line in lines] == [
        "interpreter", "options", "comment", "options", "blank", "wrong", "options", "command", "late",
    ]  # fmt: skip


def test_options_are_told_with_what_they_mean() -> None:
    lines = annotate(SCRIPT)
    name, gpus = lines[1].options
    assert (name.option, name.value, name.remark) == ("--job-name", "train", "")
    assert gpus.means
    assert gpus.remark == "said again further below, which counts"
    assert lines[3].options[0].remark == ""
    assert lines[6].options[0].option == "--heal"


def test_what_is_meant_otherwise_is_told() -> None:
    lines = annotate(SCRIPT)
    assert lines[2].says == "Only a comment: write #SBATCH at the beginning of the line."
    assert "unrecognized option '--colour=red'" in lines[5].says
    assert lines[8].says == "Only a comment: options are read before the first command."


def test_components_do_not_override_each_other() -> None:
    lines = annotate("#!/bin/sh\n#SBATCH -n1\n#SBATCH hetjob\n#SBATCH -n2\ntrue\n")
    assert "next component" in lines[2].says
    assert not any(each.remark for line in lines for each in line.options)


def test_flags_of_services_make_a_service_and_those_of_jobs_do_not() -> None:
    assert asks_for_service("#!/bin/sh\n#BIREME --replicas=2\ntrue\n")
    assert not asks_for_service(SCRIPT)
    assert not asks_for_service("#!/bin/sh\ntrue\n#BIREME --replicas=2\n")
    assert not asks_for_service('#!/bin/sh\n#BIREME --replicas="2\ntrue\n'), "what cannot be read is told elsewhere"
