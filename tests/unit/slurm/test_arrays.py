"""Job arrays. Literal expectations come from Slurm 22.05 (sbatch --array, squeue %K)."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.slurm.arrays import format_array, format_task_ids, parse_array
from bireme.slurm.errors import SlurmSyntaxError

VECTORS = Path(__file__).parents[4] / "shared" / "data" / "vectors" / "slurm_strings.json"

ECHOED = [
    ("0-31:2%4", "0-30:2%4"),
    ("1,3,5-9", "1,3,5-9"),
    ("0-1000", "0-1000"),
    ("5,3,1", "1,3,5"),
    ("1-5,3-7", "1-7"),
    ("1,1,2", "1-2"),
    ("1,,2", "1-2"),
    ("1, 2", "1-2"),
    ("[1-3]", "1-3"),
    ("[1-3]%2", "1-3%2"),
    ("[1-3%2]", "1-3%2"),
    ("[1,2],[3]", "1-3"),
    ("1-4%2,6", "1-4,6%2"),
    ("1-3%0", "1-3"),
    ("1-3%", "1-3"),
    ("01-03", "1-3"),
    ("1-10:20", "1"),
    ("1-9:2", "1,3,5,7,9"),
    ("1-11:2", "1,3,5,7,9,11"),
    ("0-12:2", "0-12:2"),
    ("1-16:3", "1-16:3"),
    ("1-41:10", "1,11,21,31,41"),
    ("0-20:2,21", "0,2,4,6,8,10,12,14,16,18,20-21"),
]


@pytest.mark.parametrize(("text", "shown"), ECHOED)
def test_what_sbatch_takes_squeue_shows(text: str, shown: str) -> None:
    spec = parse_array(text)
    assert format_array(spec.task_ids, spec.throttle) == shown


def test_reads_ids_and_throttle() -> None:
    spec = parse_array("0-6:2%4")
    assert (spec.task_ids, spec.throttle, spec.text) == ((0, 2, 4, 6), 4, "0-6:2%4")
    assert parse_array("7").throttle is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "5-3",
        "-1",
        "1-",
        "1:2",
        "3-4:0",
        "1-3:",
        "1-3:x",
        "1-2-3",
        "0x3",
        "1[2]",
        "[1",
        "%2",
        "1-3%x",
        "1%2%3",
        "1%2x",
    ],
)
def test_refuses_what_is_no_array(text: str) -> None:
    with pytest.raises(SlurmSyntaxError, match=r"^Invalid job array specification"):
        parse_array(text)


def test_task_ids_stay_below_max_array_size() -> None:
    assert parse_array("1000").task_ids == (1000,)
    assert parse_array("9", max_size=10).task_ids == (9,)
    for text, size in (("0-1001", 1001), ("10", 10), ("0-9999999999", 1001)):
        with pytest.raises(SlurmSyntaxError, match=f"MaxArraySize is {size}"):
            parse_array(text, max_size=size)


THIRDS = tuple(number for number in range(1, 40) if number % 3 != 2)


def test_long_lists_are_cut_as_squeue_cuts_them() -> None:
    cut = "1,3-4,6-7,9-10,12-13,15-16,18-19,21-22,24-25,27-28,30-31,33-..."
    assert format_array(THIRDS) == cut
    assert format_array(THIRDS, 5) == cut + "%5"
    assert "..." not in format_array(THIRDS, max_length=0)


@pytest.mark.parametrize(
    ("length", "shown"),
    [(13, "1,3-4,6-7"), (11, "1,3-4,6..."), (10, "1,3-4,..."), (9, "1,3-4..."), (4, "..."), (3, ".."), (1, "")],
)
def test_the_length_is_slurm_bitstr_len(length: int, shown: str) -> None:
    assert format_task_ids((1, 3, 4, 6, 7), length) == shown


def test_agrees_with_the_published_array_strings() -> None:
    if not VECTORS.exists():
        pytest.skip(f"needs {VECTORS.name} of the shared test data beside the checkout")
    for mask, throttle, shown in json.loads(VECTORS.read_text())["array_bitmap_to_str"]:
        bits = int(mask, 16)
        task_ids = [bit for bit in range(bits.bit_length()) if bits >> bit & 1]
        assert format_array(task_ids, throttle) == shown


@given(st.sets(st.integers(0, 1000), min_size=1), st.none() | st.integers(1, 99))
def test_a_printed_array_reads_back(ids: set[int], throttle: int | None) -> None:
    spec = parse_array(format_array(sorted(ids), throttle, max_length=0))
    assert (spec.task_ids, spec.throttle) == (tuple(sorted(ids)), throttle)


@given(st.text() | st.text(alphabet="0123456789-:,%[] "))
def test_any_text_is_an_array_or_a_syntax_error(text: str) -> None:
    try:
        spec = parse_array(text)
    except SlurmSyntaxError:
        return
    assert list(spec.task_ids) == sorted(set(spec.task_ids))
    assert spec.task_ids[-1] <= 1000
