"""Which setting wins, and what comes along from the environment."""

from collections.abc import Mapping, Sequence

import pytest

from bireme.slurm.options.catalogue.table import Command
from bireme.slurm.options.errors import OptionError
from bireme.slurm.options.export import exported, parse_export_file
from bireme.slurm.options.layers import Options, Source, question, resolve
from bireme.slurm.options.values import Moment, NodeCount
from bireme.slurm.script import directives


def options(
    argv: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    script: Sequence[str] = (),
    command: Command = Command.SBATCH,
    inside_job: bool = False,
) -> tuple[Options, ...]:
    found = directives("\n".join(["#!/bin/sh", *(f"#SBATCH {line}" for line in script)]), "job.sh")
    moment = Moment(command, 1.8e9, lambda at: 0.0)
    return resolve(command, argv, environment or {}, moment, found, inside_job=inside_job)


def one(*args: object, **kwargs: object) -> Options:
    (only,) = options(*args, **kwargs)  # type: ignore[arg-type]
    return only


def test_command_line_over_environment_over_script() -> None:
    got = one(
        ["-pline"], {"SBATCH_PARTITION": "variable", "SBATCH_ACCOUNT": "variable"}, ["-pscript -Ascript -qscript"]
    )
    assert (got.text("partition"), got.text("account"), got.text("qos")) == ("line", "variable", "script")
    assert got.source("account") is Source.ENVIRONMENT


def test_the_last_of_a_layer_wins() -> None:
    assert one(["-N2", "-N3"]).typed("nodes", NodeCount) == NodeCount(3, 3)
    assert one(script=["--requeue", "--no-requeue"]).typed("requeue", bool) is False
    assert one(["--requeue"], script=["--no-requeue"]).typed("requeue", bool) is True
    assert one(["--requeue=expedite", "--no-requeue"]).written("requeue") is None


def test_a_question_is_answered_before_later_mistakes() -> None:
    assert question(Command.SBATCH, ["-N2", "--help", "--foo"]) == "help"
    assert question(Command.SRUN, ["-V"]) == "version"
    assert question(Command.SRUN, ["hostname", "--help"]) is None


def test_an_alias_sets_what_it_stands_for() -> None:
    assert one(["--tasks-per-node=4"]).number("ntasks-per-node") == 4


@pytest.mark.parametrize(
    ("text", "on"), [("", True), ("yes", True), ("2", True), ("-1", True), ("0", False), ("no", False), ("1x", False)]
)
def test_a_variable_of_an_option_without_value(text: str, on: bool) -> None:
    assert one((), {"SBATCH_OVERCOMMIT": text}).flag("overcommit") is on


def test_a_more_specific_variable_wins() -> None:
    assert one((), {"SLURM_HINT": "multithread", "SBATCH_HINT": "nomultithread"}).text("hint") == "nomultithread"
    both = {"SLURM_EXPORT_ENV": "NONE", "SRUN_EXPORT_ENV": "ALL"}
    assert one(["x"], both, command=Command.SRUN).text("export") == "ALL"


def test_srun_inside_a_job_does_not_take_the_jobs_name() -> None:
    environment = {"SLURM_JOB_NAME": "job", "SLURM_STEP_GRES": "gpu:1"}
    outside = one(["x"], environment, command=Command.SRUN)
    inside = one(["x"], environment, command=Command.SRUN, inside_job=True)
    assert (outside.text("job-name"), "gres" in outside) == ("job", False)
    assert ("job-name" in inside, "gres" in inside) == (False, True)


def test_one_kind_of_memory() -> None:
    with pytest.raises(OptionError) as caught:
        one(["--mem-per-cpu=2G"], script=["--mem=4G"])
    expected = "sbatch: fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive."
    assert (caught.value.exit_code, caught.value.text_for("sbatch")) == (1, expected)
    with pytest.raises(OptionError, match="SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU, and SLURM_MEM_PER_NODE"):
        one((), {"SBATCH_MEM_PER_NODE": "1G", "SBATCH_MEM_PER_CPU": "1G"})
    got = one((), {"SBATCH_MEM_PER_CPU": "2G"}, ["--mem=4G"])
    assert (got.number("mem"), "mem-per-cpu" in got) == (4096, False)


def test_a_script_cannot_ask_for_help_or_hold_loose_words() -> None:
    assert one(script=["-h", "--wrap=x", "-V", "-N2"]).settings.keys() == {"nodes"}
    with pytest.raises(OptionError, match="Invalid directive found in batch script: foo"):
        one(script=["-N2 foo"])


def test_components_line_up() -> None:
    first, second = options(["-A", "a", ":", "-A", "b"], {"SBATCH_QOS": "q"}, ["-N1", "hetjob", "-N2"])
    assert [each.text("account") for each in (first, second)] == ["a", "b"]
    assert [each.text("qos") for each in (first, second)] == ["q", "q"]
    assert second.typed("nodes", NodeCount) == NodeCount(2, 2)


def test_what_is_not_applied_is_known_whether_written_or_in_a_variable() -> None:
    assert one(["--reboot", "-N2"], {"SBATCH_POWER": "level"}).ignored() == ("power", "reboot")


OUTER = {"HOME": "/home/ada", "FOO": "outer", "BAR": "b", "SLURM_CONF": "/etc/slurm.conf"}


@pytest.mark.parametrize(
    ("text", "expected", "login"),
    [
        (None, OUTER, False),
        ("ALL", OUTER, False),
        ("ALL,FOO=inner,NEW=1", {**OUTER, "FOO": "inner", "NEW": "1"}, False),
        ("NONE", {"SLURM_CONF": "/etc/slurm.conf"}, True),
        ("NIL", {"SLURM_CONF": "/etc/slurm.conf"}, False),
        ("", {"SLURM_CONF": "/etc/slurm.conf"}, True),
        ("FOO=x,BAR,GONE", {"SLURM_CONF": "/etc/slurm.conf", "FOO": "x", "BAR": "b"}, True),
        ("FOO='a,b'", {"SLURM_CONF": "/etc/slurm.conf", "FOO": "'a,b'"}, True),
    ],
)
def test_export(text: str | None, expected: dict[str, str], login: bool) -> None:
    got = exported(OUTER, text)
    assert (got.environment, got.load_login_environment) == (expected, login)


def test_export_file() -> None:
    assert parse_export_file(b"A=1\0B=x=y\0broken\0") == {"A": "1", "B": "x=y"}
