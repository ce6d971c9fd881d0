"""The syntax all configuration files share: comments, continued lines, quotes, Include."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.slurm.conf.diagnostics import Findings
from bireme.slurm.conf.lines import parse_lines, read_lines


def pairs(text: str) -> list[tuple[tuple[str, str], ...]]:
    findings = Findings()
    lines = parse_lines(text, "x.conf", findings)
    assert findings.errors == []
    return [line.pairs for line in lines]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A=1 B=2", (("A", "1"), ("B", "2"))),
        ("A = 1", (("A", "1"),)),
        ('Reason="power, ETA=Dec25" State=DOWN', (("Reason", "power, ETA=Dec25"), ("State", "DOWN"))),
        ("Weights=CPU=1.0,Mem=0.25G", (("Weights", "CPU=1.0,Mem=0.25G"),)),
        ("Nodes= State=UP", (("Nodes", "State=UP"),)),  # as Slurm reads it, which then knows no such node
        ("A = b=1,c=2", (("A", "b=1,c=2"),)),
        ('A="x"y B=2', (("A", '"x"y'), ("B", "2"))),
        ("A=1 # B=2", (("A", "1"),)),
        (r"A=x\#y", (("A", "x#y"),)),
        ("A=1 \\\n   B=2", (("A", "1"), ("B", "2"))),
        ("A=1 \\ # why\nB=2", (("A", "1"), ("B", "2"))),
        ("A=1\r", (("A", "1"),)),
    ],
)
def test_one_logical_line(text: str, expected: tuple[tuple[str, str], ...]) -> None:
    assert pairs(text) == [expected]


def test_a_commented_line_does_not_continue() -> None:
    assert pairs("# A=1 \\\nB=2") == [(("B", "2"),)]


def test_the_place_of_a_continued_line_is_its_first() -> None:
    lines = parse_lines("\n\nA=1 \\\nB=2\nC=3", "x.conf", Findings())
    assert [str(line.place) for line in lines] == ["x.conf:3", "x.conf:5"]


def test_text_that_is_no_pair_is_an_error_with_its_line() -> None:
    findings = Findings()
    parse_lines("A=1\nnonsense here\n", "x.conf", findings)
    assert [str(error) for error in findings.errors] == [
        'x.conf:2: Parse error at "nonsense here": it is not Key=value'
    ]


def test_include_is_relative_to_the_file_and_knows_the_cluster() -> None:
    files = {
        "/etc/slurm/slurm.conf": "ClusterName=alpha\nInclude %c_nodes.conf\nC=3",
        "/etc/slurm/alpha_nodes.conf": "B=2",
    }
    lines = read_lines("/etc/slurm/slurm.conf", files.__getitem__, Findings())
    assert [line.pairs[0] for line in lines] == [("ClusterName", "alpha"), ("B", "2"), ("C", "3")]
    assert str(lines[1].place) == "/etc/slurm/alpha_nodes.conf:1"


def test_a_missing_include_is_an_error_where_it_is_written() -> None:
    def read(path: str) -> str:
        if path != "slurm.conf":
            raise FileNotFoundError(2, "No such file or directory")
        return "A=1\ninclude gone.conf"

    findings = Findings()
    read_lines("slurm.conf", read, findings)
    assert [str(error) for error in findings.errors] == [
        "slurm.conf:2: Include gone.conf: cannot read gone.conf: No such file or directory"
    ]


def test_files_that_include_each_other_end() -> None:
    findings = Findings()
    read_lines("a.conf", lambda _: "Include a.conf", findings)
    assert "include each other" in findings.errors[0].message


@given(st.text(max_size=200))
def test_any_text_is_read_or_reported(text: str) -> None:
    findings = Findings()
    for line in parse_lines(text, "x.conf", findings):
        assert line.pairs
        assert line.place.line >= 1


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[A-Z][A-Za-z0-9]{0,8}", fullmatch=True),
            st.from_regex(r"[a-z0-9\[\],/:.-]{1,9}", fullmatch=True),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_written_pairs_come_back(written: list[tuple[str, str]]) -> None:
    assert pairs(" ".join(f"{key}={value}" for key, value in written)) == [tuple(written)]
