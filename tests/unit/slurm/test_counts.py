"""Compressed count lists."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.slurm.counts import compress_counts, expand_counts
from bireme.slurm.errors import SlurmSyntaxError


@pytest.mark.parametrize(
    ("counts", "text"), [([], ""), ([4], "4"), ([2, 2, 2, 1], "2(x3),1"), ([1, 2, 1, 1], "1,2,1(x2)")]
)
def test_repeats_are_written_once(counts: list[int], text: str) -> None:
    assert compress_counts(counts) == text
    assert expand_counts(text) == counts


@pytest.mark.parametrize("text", ["x", "2(x", "2(3)", "2,,1", "-1", "2(x99999999)", "1(x65536),1"])
def test_refuses_what_is_no_count_list(text: str) -> None:
    with pytest.raises(SlurmSyntaxError, match=r"^Invalid count list"):
        expand_counts(text)


@given(st.lists(st.integers(0, 9)))
def test_expand_undoes_compress(counts: list[int]) -> None:
    assert expand_counts(compress_counts(counts)) == counts


@given(st.text() | st.text(alphabet="0123456789(x),"))
def test_any_text_is_a_count_list_or_a_syntax_error(text: str) -> None:
    with contextlib.suppress(SlurmSyntaxError):
        assert len(expand_counts(text)) <= 65536
