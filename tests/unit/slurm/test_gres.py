"""GRES and TRES strings. What sbatch 22.05 accepts, refuses and shows."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.core.model.resources import GresRequest
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.gres import format_gres, format_tres, parse_gpus, parse_gres, parse_tres


@pytest.mark.parametrize(
    ("text", "requests"),
    [
        ("gpu", [("gpu", None, 1)]),
        ("gpu:8", [("gpu", None, 8)]),
        ("gpu:0", [("gpu", None, 0)]),
        ("gpu:1k", [("gpu", None, 1024)]),
        ("gpu:a100", [("gpu", "a100", 1)]),
        ("gpu:a100:8", [("gpu", "a100", 8)]),
        ("gpu:a100_3g.20gb:1", [("gpu", "a100_3g.20gb", 1)]),
        ("gres:gpu:2", [("gpu", None, 2)]),
        ("gpu:a100:2,gpu:h100:1,nic:1", [("gpu", "a100", 2), ("gpu", "h100", 1), ("nic", None, 1)]),
        ("none", []),
        ("", []),
    ],
)
def test_reads_gres(text: str, requests: list[tuple[str, str | None, int]]) -> None:
    assert parse_gres(text) == tuple(GresRequest(*request) for request in requests)


@pytest.mark.parametrize(
    "text", ["gpu:", ",", "gpu,", "gpu:a100:2:3", "gpu=2", "gres/gpu:2", "gpu:-1", "gpu:a100:x", "gpu:8:2", ":1"]
)
def test_refuses_what_is_no_gres(text: str) -> None:
    with pytest.raises(SlurmSyntaxError, match=r"^Invalid generic resource \(gres\) specification"):
        parse_gres(text)


def test_one_gres_has_types_or_none() -> None:
    for parse, text in ((parse_gres, "gpu:a100:2,gpu:1"), (parse_gpus, "a100:2,1")):
        with pytest.raises(SlurmSyntaxError, match="with and without type identification"):
            parse(text)


@pytest.mark.parametrize(
    ("text", "requests"),
    [
        ("4", [(None, 4)]),
        ("0", [(None, 0)]),
        ("h100:4", [("h100", 4)]),
        ("h100", [("h100", 1)]),
        ("v100:2,h100:1", [("v100", 2), ("h100", 1)]),
    ],
)
def test_reads_gpus(text: str, requests: list[tuple[str | None, int]]) -> None:
    assert parse_gpus(text) == tuple(GresRequest("gpu", type_, count) for type_, count in requests)


@pytest.mark.parametrize("text", ["", "-1", "h100:", ":4", "h100:x", "h100:4:2", "4 5"])
def test_refuses_what_is_no_gpu_count(text: str) -> None:
    with pytest.raises(SlurmSyntaxError, match="Invalid generic resource"):
        parse_gpus(text)


def test_prints_gres_as_squeue() -> None:
    assert format_gres(parse_gres("gpu:a100:8"), prefix="gres:") == "gres:gpu:a100:8"
    assert format_gres(parse_gres("gpu:2,nic")) == "gpu:2,nic:1"


def test_reads_and_prints_tres() -> None:
    text = "cpu=4,mem=8G,node=1,billing=4,gres/gpu=2,gres/gpu:h100=2"
    counts = parse_tres(text)
    assert counts == {"cpu": 4, "mem": 8192, "node": 1, "billing": 4, "gres/gpu": 2, "gres/gpu:h100": 2}
    assert format_tres(counts) == text
    assert (
        format_tres({"gres/gpu": 1, "node": 2, "cpu": 3, "mem": 64000, "billing": 0})
        == "cpu=3,mem=62.50G,node=2,gres/gpu=1"
    )
    assert parse_tres("") == {}


@pytest.mark.parametrize("text", ["cpu", "cpu=", "cpu=x", "foo=1", "mem=1.5G", "cpu=1,,mem=1", "gres/=1"])
def test_refuses_what_is_no_tres(text: str) -> None:
    with pytest.raises(SlurmSyntaxError, match=r"^Invalid Trackable RESource \(TRES\) specification"):
        parse_tres(text)


requests = st.builds(
    GresRequest,
    st.sampled_from(["gpu", "nic", "shard"]),
    st.sampled_from(["a100", "h100_3g.40gb"]),
    st.integers(0, 10**6),
)


@given(st.lists(requests).map(tuple))
def test_printed_gres_reads_back(given_requests: tuple[GresRequest, ...]) -> None:
    assert parse_gres(format_gres(given_requests)) == given_requests


@given(st.text() | st.text(alphabet="gpua10:,=/.mem"))
def test_any_text_is_understood_or_a_syntax_error(text: str) -> None:
    for parse in (parse_gres, parse_gpus, parse_tres):
        with contextlib.suppress(SlurmSyntaxError):
            parse(text)
