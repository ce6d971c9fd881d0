"""Sizes. Literal expectations come from Slurm 22.05 (sbatch, squeue %m, scontrol show job)."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.sizes import format_memory, format_size, parse_memory


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("0", 0),
        ("4000", 4000),
        ("4G", 4096),
        ("4GB", 4096),
        ("900g", 921600),
        ("1T", 1048576),
        ("4k", 1),
        ("1500K", 2),
        ("1025K", 2),
        ("1024KB", 1),
        (" 4", 4),
    ],
)
def test_reads_memory_as_sbatch(text: str, mib: int) -> None:
    assert parse_memory(text) == mib


def test_the_unit_where_none_is_given_is_the_callers() -> None:
    assert parse_memory("2", "G") == 2048
    assert parse_memory("2M", "G") == 2


@pytest.mark.parametrize(
    "text", ["", "G", "x", "-1", "1.5G", "1.5T", "4Gi", "4GiB", "4 G", "4B", "2P", "4M5", "UNLIMITED", "4\u212a"]
)
def test_refuses_what_sbatch_refuses(text: str) -> None:
    with pytest.raises(SlurmSyntaxError, match="Invalid memory specification"):
        parse_memory(text)


@pytest.mark.parametrize(
    ("mib", "text"),
    [
        (0, "0"),
        (1, "1M"),
        (512, "512M"),
        (900, "900M"),
        (1024, "1G"),
        (1536, "1.50G"),
        (4000, "4000M"),
        (4096, "4G"),
        (64000, "62.50G"),
        (1000000, "1000000M"),
        (1572864, "1.50T"),
        (999 * 1048576, "999T"),
    ],
)
def test_prints_memory_as_squeue(mib: int, text: str) -> None:
    assert format_memory(mib) == text


def test_prints_other_units_and_roundings() -> None:
    assert format_size(4000, "M", exact=False) == "3.91G"
    assert format_size(4000, "K") == "4000K"
    assert format_size(4000, "M", to="G") == "3.91G"
    assert format_size(2, "G", to="M") == "2048M"
    assert format_size(1536) == "1.50K"


@given(st.integers(0, 2**40))
def test_printed_whole_units_read_back(mib: int) -> None:
    text = format_memory(mib)
    if "." not in text and not text.endswith("P"):
        assert parse_memory(text) == mib


@given(st.text() | st.text(alphabet="0123456789KMGTB. "))
def test_any_text_is_a_size_or_a_syntax_error(text: str) -> None:
    with contextlib.suppress(SlurmSyntaxError):
        assert parse_memory(text) >= 0
