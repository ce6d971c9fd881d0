"""Reading a command line as getopt_long does, down to its messages."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.slurm.options.catalogue.all_options import TABLES
from bireme.slurm.options.catalogue.table import Command
from bireme.slurm.options.errors import OptionError
from bireme.slurm.options.getopt import read_command_line, read_options


def read(*words: str, command: Command = Command.SBATCH) -> tuple[list[tuple[str, str | None]], list[str]]:
    options, rest = read_options(TABLES[command], words)
    return [(each.option.name, each.value) for each in options], rest


def refusal(*words: str, command: Command = Command.SBATCH) -> str:
    with pytest.raises(OptionError) as caught:
        read(*words, command=command)
    assert caught.value.exit_code == 255
    return caught.value.text_for(command)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--nodes=2"], [("nodes", "2")]),
        (["--nodes", "2"], [("nodes", "2")]),
        (["-N2"], [("nodes", "2")]),
        (["-N", "2"], [("nodes", "2")]),
        (["-HN2"], [("hold", None), ("nodes", "2")]),
        (["--part=x"], [("partition", "x")]),
        (["--tasks=4"], [("tasks-per-node", "4")]),
        (["--exclusive"], [("exclusive", None)]),
        (["--exclusive=user"], [("exclusive", "user")]),
        (["--nice", "--hold"], [("nice", None), ("hold", None)]),
        (["--output="], [("output", "")]),
        (["-k"], [("no-kill", None)]),
        (["--cluster=a"], [("cluster", "a")]),
        (["-J", "--hold"], [("job-name", "--hold")]),
    ],
)
def test_ways_to_write_an_option(words: list[str], expected: list[tuple[str, str | None]]) -> None:
    assert read(*words) == (expected, [])


def test_reading_stops_at_the_first_word_that_is_no_option() -> None:
    assert read("-N2", "train.sh", "-n4") == ([("nodes", "2")], ["train.sh", "-n4"])
    assert read("-N2", "--", "-n4") == ([("nodes", "2")], ["-n4"])
    assert read("-") == ([], ["-"])


def test_an_optional_value_must_be_attached() -> None:
    assert read("-K", "9", command=Command.SALLOC) == ([("kill-command", None)], ["9"])
    assert read("-K9", command=Command.SALLOC) == ([("kill-command", "9")], [])


def test_messages() -> None:
    end = '\nTry "sbatch --help" for more information'
    assert refusal("--foo") == f"sbatch: unrecognized option '--foo'{end}"
    assert refusal("--foo=3") == f"sbatch: unrecognized option '--foo=3'{end}"
    assert refusal("-Z") == f"sbatch: invalid option -- 'Z'{end}"
    assert refusal("-N") == f"sbatch: option requires an argument -- 'N'{end}"
    assert refusal("--nodel") == f"sbatch: option '--nodelist' requires an argument{end}"
    assert refusal("--hold=3") == f"sbatch: option '--hold' doesn't allow an argument{end}"
    listed = "'--nodefile' '--nodelist' '--nodes'"
    assert refusal("--node=3") == f"sbatch: option '--node=3' is ambiguous; possibilities: {listed}{end}"


def test_components_of_a_heterogeneous_job() -> None:
    sbatch = read_command_line(TABLES[Command.SBATCH], ["-N2", ":", "-N3", "-pq", "run.sh", ":", "x"])
    assert [len(component.options) for component in sbatch] == [1, 2]
    assert sbatch[1].words == ("run.sh", ":", "x")
    srun = read_command_line(TABLES[Command.SRUN], ["-n1", "a", "b", ":", "-n2", "c"])
    assert [component.words for component in srun] == [("a", "b"), ("c",)]


@given(st.sampled_from(list(Command)), st.lists(st.text(max_size=12), max_size=6))
def test_any_words_are_read_or_refused(command: Command, words: list[str]) -> None:
    with contextlib.suppress(OptionError):
        read_command_line(TABLES[command], words)
