"""Hostlists. The literal expectations are what Slurm 22.05 prints for `scontrol show hostnames` and its kin."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.hostlist import MAX_HOSTS, compress, compress_sorted, expand, sort_names

EXPANDED = [
    ("", ""),
    (",", ""),
    ("a,,b", "a b"),
    (" a , b", "a b"),
    ("a b", "a b"),
    ("a\nb", "a b"),
    ("r[1-2]n[01-03]", "r1n01 r1n02 r1n03 r2n01 r2n02 r2n03"),
    ("a,b[3,5-6]", "a b3 b5 b6"),
    ("n[01-10]", "n01 n02 n03 n04 n05 n06 n07 n08 n09 n10"),
    ("n[1-010]", "n1 n2 n3 n4 n5 n6 n7 n8 n9 n10"),
    ("n[9-10]", "n9 n10"),
    ("n[001,02,3]", "n001 n02 n3"),
    ("[1-3]", "1 2 3"),
    ("n[1-2][3-4]", "n13 n14 n23 n24"),
    ("r[1-2]n[1-2]x[1-2]", "r1n1x1 r1n1x2 r2n1x1 r2n1x2 r1n2x1 r1n2x2 r2n2x1 r2n2x2"),
    (
        "r[1-2]n[1-2]x[1-2]y[1-2]",
        "r1n1x1y1 r1n1x1y2 r2n1x1y1 r2n1x1y2 r1n2x1y1 r1n2x1y2 r2n2x1y1 r2n2x1y2 "
        "r1n1x2y1 r1n1x2y2 r2n1x2y1 r2n1x2y2 r1n2x2y1 r1n2x2y2 r2n2x2y1 r2n2x2y2",
    ),
]

COMPRESSED = [
    ("n1 n2 n03 n3 n4 n4", "n[1-2,03,3-4,4]"),
    ("n10 n9 n1", "n[10,9,1]"),
    ("n9 n10", "n[9-10]"),
    ("n09 n10", "n[09-10]"),
    ("n08 n9", "n[08,9]"),
    ("n99 n100", "n[99-100]"),
    ("n099 n100", "n[099-100]"),
    ("n9 n010", "n[9,010]"),
    ("n1 n01", "n[1,01]"),
    ("n0 n00", "n[0,00]"),
    ("1 2 3", "[1-3]"),
    ("r1n1 r1n2 r2n1 r2n2", "r1n[1-2],r2n[1-2]"),
    ("a1-ib a2-ib", "a1-ib,a2-ib"),
    ("n1 n2 m1 n3", "n[1-2],m1,n3"),
    ("n n1", "n,n1"),
    ("n-1 n-2", "n-[1-2]"),
    ("b a c", "b,a,c"),
    ("n1 n1 n1", "n[1,1,1]"),
    ("N1 n2", "N1,n2"),
    ("n18446744073709551615", "n18446744073709551615"),
]

SORTED = [
    ("n3 n1 n2 n2", "n[1-2,2-3]"),
    ("n10 n9 n1", "n[1,9-10]"),
    ("b a c", "a,b,c"),
    ("a10-ib a9-ib", "a9-ib,a10-ib"),
    ("r10n1 r9n1 r1n1", "r1n1,r9n1,r10n1"),
    ("n001 n02 n3", "n[3,02,001]"),
    ("n01 n1", "n[1,01]"),
    ("n1 n", "n,n1"),
    ("n1 n2 n3 n2 n3 n4 n5", "n[1-2,2-3,3-5]"),
    ("n10 n9 n10 n11 n12 n99", "n[9-10,10-12,99]"),
    ("m00 m8 m9 m10 m11", "m[8-11,00]"),
    ("B1 a1", "B1,a1"),
]


@pytest.mark.parametrize(("text", "names"), EXPANDED)
def test_expands_as_scontrol_show_hostnames(text: str, names: str) -> None:
    assert expand(text) == names.split()


@pytest.mark.parametrize(("names", "text"), COMPRESSED)
def test_compresses_as_scontrol_show_hostlist(names: str, text: str) -> None:
    assert compress(names.split()) == text


@pytest.mark.parametrize(("names", "text"), SORTED)
def test_compresses_as_scontrol_show_hostlistsorted(names: str, text: str) -> None:
    assert compress_sorted(names.split()) == text


def test_text_after_the_brackets_is_accepted() -> None:
    assert expand("n[1-2]-ib,a[08-09]x[1-2].lan") == [
        *("n1-ib", "n2-ib"),
        *("a08x1.lan", "a08x2.lan", "a09x1.lan", "a09x2.lan"),
    ]


@pytest.mark.parametrize(
    "text", ["n[3-1]", "n[]", "n[1", "n1]", "n[a]", "n[1-2,]", "n[,1]", "n[1--2]", "n[-1]", "n[[1]]"]
)
def test_refuses_what_is_no_hostlist(text: str) -> None:
    with pytest.raises(SlurmSyntaxError, match=r"^Invalid hostlist: "):
        expand(text)


def test_digits_of_other_scripts_are_letters() -> None:
    assert sort_names(["\u0663b2", "a10", "a9"]) == ["a9", "a10", "\u0663b2"]


def test_one_expression_names_at_most_64k_hosts() -> None:
    assert len(expand(f"n[1-{MAX_HOSTS}]")) == MAX_HOSTS
    for text in ("n[1-65537]", "n[0-999]x[0-999]", "n[1-40000],m[1-40000]", "n[1-99999999999999999999]"):
        with pytest.raises(SlurmSyntaxError, match=r"too many hosts|more than 65536"):
            expand(text)


node_names = st.lists(
    st.from_regex(r"[a-z]{0,2}([0-9]{1,4}[a-z.-]{1,2})?[0-9]{0,4}", fullmatch=True).filter(bool), max_size=30
)


@given(node_names)
def test_expand_undoes_compress(names: list[str]) -> None:
    assert expand(compress(names)) == names


@given(node_names)
def test_sorting_keeps_every_name(names: list[str]) -> None:
    assert sorted(sort_names(names)) == sorted(names)
    assert expand(compress_sorted(names)) == sort_names(names)


@given(st.lists(st.text()))
def test_any_names_can_be_sorted_and_compressed(names: list[str]) -> None:
    assert len(sort_names(names)) == len(names)
    assert isinstance(compress_sorted(names), str)


@given(st.text() | st.text(alphabet="n019[]-, "))
def test_any_text_expands_or_is_a_syntax_error(text: str) -> None:
    try:
        names = expand(text)
    except SlurmSyntaxError:
        return
    assert expand(",".join(names)) == names
