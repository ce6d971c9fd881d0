"""Batch scripts: what is one, and what its directives say. Every case was tried on Slurm 22.05."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.slurm.options.errors import OptionError
from bireme.slurm.script import MAX_SCRIPT_BYTES, directives, read_script, wrap


def words(*lines: str) -> list[tuple[str, ...]]:
    found = directives("\n".join(["#!/bin/sh", *lines]), "job.sh")
    assert len(found.components) == 1
    return [line.words for line in found.components[0]]


def refusal(data: bytes) -> tuple[str, ...]:
    with pytest.raises(OptionError) as caught:
        read_script(data)
    assert caught.value.exit_code == 1
    return caught.value.messages


def test_what_is_no_script() -> None:
    assert refusal(b"") == ("Batch script is empty!",)
    assert refusal(b" \n\t\n") == ("Batch script contains only whitespace!",)
    assert refusal(b"echo hi\n")[0] == "This does not look like a batch script.  The first"
    assert refusal(b"\x7fELF")[2] == "For instance: #!/bin/sh"
    assert refusal(b"#!/bin/sh\necho \0\n")[1] == "contain a NULL character '\\0'."
    assert refusal(b"#!/bin/sh\r\n")[0] == "Batch script contains DOS line breaks (\\r\\n)"
    assert "too long" in refusal(b"#!/bin/sh\n" + b"x" * MAX_SCRIPT_BYTES)[0]


def test_bytes_that_are_not_utf8_survive() -> None:
    data = b"#!/bin/sh\n# \xff\xfe\n"
    assert read_script(data).encode("utf-8", "surrogateescape") == data


def test_directives_end_at_the_first_command() -> None:
    assert words("#SBATCH -N2", "", "   ", "# note", "  # note", "#SBATCH -n4", "hostname", "#SBATCH -N9") == [
        ("-N2",),
        ("-n4",),
    ]


def test_what_is_no_directive() -> None:
    assert words("##SBATCH -N2", "# SBATCH -N2", " #SBATCH -N2", "#sbatch -N2", "#SBATCH", "#SBATCH  # -N2") == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("#SBATCH --array=0-999 # a thousand", ("--array=0-999",)),
        ("#SBATCH -N 2 --ntasks-per-node=3", ("-N", "2", "--ntasks-per-node=3")),
        ("#SBATCH\t-p\tq", ("-p", "q")),
        ("#SBATCH-N2", ("-N2",)),
        ('#SBATCH -J "two words" # why', ("-J", "two words")),
        ("#SBATCH --comment=a'b c'd", ("--comment=ab cd",)),
        (r'#SBATCH --comment="say \"hi\""', ('--comment=say "hi"',)),
        (r"#SBATCH --comment=a\\b", (r"--comment=a\b",)),
        (r"#SBATCH --comment=a\#b", ("--comment=a#b",)),
        (r"#SBATCH --comment=a\ b", ("--comment=a", "b")),
        ("#SBATCH --comment=a#b", ("--comment=a",)),
        ('#SBATCH --comment="a # b"', ("--comment=a # b",)),
        ("#SBATCH --comment=trailing\\", ("--comment=trailing",)),
        ("#SBATCH --gres=gpu:2 --output=logs/%j/$USER.out", ("--gres=gpu:2", "--output=logs/%j/$USER.out")),
    ],
)
def test_words_of_a_directive(line: str, expected: tuple[str, ...]) -> None:
    assert words(line) == [expected]


def test_unfinished_quotes_and_colons_are_fatal() -> None:
    with pytest.raises(OptionError) as caught:
        words('#SBATCH -J "abc')
    assert caught.value.text_for("sbatch") == 'sbatch: fatal: job.sh: line 2: Unmatched `"` in [ "abc]'
    with pytest.raises(OptionError) as caught:
        words("#SBATCH : -N3")
    assert caught.value.text_for("sbatch") == "sbatch: fatal: job.sh: line 2: Unexpected `:` in [: -N3]"


def test_components_of_a_heterogeneous_job() -> None:
    found = directives("#!/bin/sh\n#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N2\n#SBATCH packjob\n#SBATCH -N3\n", "job.sh")
    assert [[line.words for line in lines] for lines in found.components] == [[("-N1",)], [("-N2",)], [("-N3",)]]
    assert "deprecated" in found.warnings[0]


def test_lines_of_other_schedulers_are_kept_apart() -> None:
    found = directives("#!/bin/sh\n#PBS -N x\n#BSUB -n 4\n#SBATCH -N1\n", "job.sh")
    assert [(line.dialect, line.words) for line in found.foreign] == [("PBS", ("-N", "x")), ("BSUB", ("-n", "4"))]


def test_wrap_makes_a_script() -> None:
    assert read_script(wrap("hostname; date").encode()).endswith("\nhostname; date\n")


@given(st.binary(max_size=400))
def test_any_bytes_are_a_script_or_refused(data: bytes) -> None:
    with contextlib.suppress(OptionError):
        directives(read_script(data), "job.sh")


@given(st.lists(st.text("#SBATCHhetjob -\"'\\:=%N2\t", max_size=30), max_size=8))
def test_any_directives_are_read_or_refused(lines: list[str]) -> None:
    with contextlib.suppress(OptionError):
        directives("\n".join(["#!/bin/sh", *(f"#SBATCH {line}" for line in lines)]), "job.sh")
