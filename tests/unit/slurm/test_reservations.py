"""Reservations in Slurm's language: pairs to orders, flags, messages, and how they are shown."""

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.core.model.reservations import ReservationFlag
from bireme.core.reservations.orders import edited
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.formats.show.job import block_text
from bireme.slurm.formats.show.reservation import reservation_block, reservation_lines
from bireme.slurm.formats.values import Context
from bireme.slurm.reservations import ReservationSyntaxError, check_complete, read_order

NOW = 1_700_000_000.0


def order(text: str) -> dict[str, object]:
    pairs = [(key, value) for key, _, value in (word.partition("=") for word in text.split())]
    name, found = read_order(pairs, NOW, lambda at: 0.0)
    assert found.pop("utc_offset_s") == 0
    return {"name": name, **found} if name else found


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("ReservationName=r StartTime=now+60 Duration=90", {"name": "r", "begin": NOW + 60, "duration_s": 5400}),
        ("res=r s=now e=now+1hour", {"name": "r", "begin": NOW, "end": NOW + 3600}),
        ("Duration=UNLIMITED", {"duration_s": 365 * 86400}),
        ("duration=0:30", {"duration_s": 60}),
        ("Nodes=n[1-2],c1", {"nodes": ["n1", "n2", "c1"]}),
        ("Nodes=all", {"all_nodes": True}),
        ("NodeCnt=2k PartitionName=gpu", {"node_count": 2048, "partition": "gpu"}),
        ("TRES=node=3", {"node_count": 3}),
        ("Users=a,b", {"users": ["a", "b"]}),
        ("User+=a Accounts-=x,y", {"users": ["+a"], "accounts": ["-x", "-y"]}),
        ("Users=-a,-b", {"users": ["-a", "-b"]}),
        ("Flags=maint,ignore_jobs", {"flags": ["MAINT", "IGNORE_JOBS"]}),
        ("Flags+=DAILY", {"flags": ["+DAILY"]}),
        ("Flags=NO_HOLD_JOBS_AFTER", {"flags": ["NO_HOLD_JOBS_AFTER_END"]}),
        ("Flags=PURGE_COMP=10", {"flags": ["PURGE_COMP"], "purge_after_s": 600}),
        ("Flags=purge_comp", {"flags": ["PURGE_COMP"], "purge_after_s": 300}),
        ("Features=a100 MaxStartDelay=5", {"features": "a100", "max_start_delay_s": 300}),
    ],
)
def test_pairs_become_an_order(text: str, wanted: dict[str, object]) -> None:
    assert order(text) == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Foo=1", "Unknown parameter Foo=1."),
        ("Node=n1", "Unknown parameter Node=n1."),
        ("StartTime=blah", "Invalid start time StartTime=blah."),
        ("Duration=xx", "Invalid duration Duration=xx."),
        ("Flags=foo", "Error parsing flags foo."),
        ("Flags=SPEC_NODES", "Error parsing flags SPEC_NODES."),
        ("Flags=DAILY=3", "Error parsing flags DAILY=3."),
        ("Nodes+=n1", "The +=/-= notation is not supported when updating Nodes."),
        ("NodeCnt=x", "Invalid node count x."),
        ("CoreCnt=4", "CoreCnt=4 is not supported here: reservations are of whole nodes."),
        ("TRES=cpu=4", "TRES=cpu=4 is not supported here: reservations are of whole nodes."),
    ],
)
def test_what_is_wrong_is_said_in_slurms_words(text: str, message: str) -> None:
    with pytest.raises(ReservationSyntaxError) as raised:
        order(text)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Users=root", "A start time must be given."),
        ("StartTime=now Users=root", "An end time or duration must be given."),
        ("StartTime=now Duration=1", "CoreCnt, Nodes, NodeCnt, BurstBuffer, Licenses or Watts must be specified."),
        ("StartTime=now Duration=1 Nodes=n1", "Either Users/Groups and/or Accounts must be specified."),
    ],
)
def test_what_a_new_one_must_say(text: str, message: str) -> None:
    with pytest.raises(ReservationSyntaxError) as raised:
        check_complete(order(text))
    assert str(raised.value) == message


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_text_is_read_or_refused(key: str, value: str) -> None:
    with contextlib.suppress(SlurmSyntaxError):
        read_order([(key, value)], NOW, lambda at: 0.0)


@given(st.lists(st.sampled_from([flag.value for flag in ReservationFlag if not flag.value.endswith("NODES")])))
def test_every_flag_is_read_back(flags: list[str]) -> None:
    assert order(f"Flags={','.join(flags)}")["flags"] == flags


def test_lists_are_replaced_or_edited() -> None:
    assert edited(("a", "b"), ("c",)) == ("c",)
    assert edited(("a", "b"), ("+c", "-a")) == ("b", "c")
    assert edited((), ("-a",), creating=True) == ("-a",)
    assert edited(("-a",), ("-b",)) == ("-a", "-b")
    assert edited(("-a", "-b"), ("+a",)) == ("-b", "a")


def stamp(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))


RECORD = {
    "name": "hx",
    "start_time": NOW,
    "end_time": NOW + 3600,
    "duration_s": 3600,
    "node_list": "n4",
    "node_count": 1,
    "core_count": 8,
    "features": "gpu",
    "partition": "",
    "flags": ["MAINT", "WEEKLY", "SPEC_NODES", "PURGE_COMP", "MAGNETIC"],
    "tres": {"cpu": 16},
    "users": ["root", "nobody"],
    "groups": [],
    "accounts": [],
    "state": "ACTIVE",
    "purge_after_s": 600,
    "max_start_delay_s": None,
}


def test_the_block_is_slurms() -> None:
    text = block_text(reservation_block(RECORD, Context(NOW, stamp)), oneliner=False)
    assert text == (
        "ReservationName=hx StartTime=2023-11-14T22:13:20 EndTime=2023-11-14T23:13:20 Duration=01:00:00\n"
        "   Nodes=n4 NodeCnt=1 CoreCnt=8 Features=gpu PartitionName=(null)"
        " Flags=MAINT,WEEKLY,SPEC_NODES,PURGE_COMP=00:10:00,MAGNETIC\n"
        "   TRES=cpu=16\n"
        "   Users=root,nobody Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=(null) Watts=n/a\n"
        "   MaxStartDelay=(null)\n\n"
    )


def test_the_list_is_sinfos() -> None:
    lines = reservation_lines([RECORD, {**RECORD, "name": "root_10", "state": "INACTIVE"}], Context(NOW, stamp))
    assert lines == [
        "RESV_NAME     STATE           START_TIME             END_TIME     DURATION  NODELIST",
        "hx           ACTIVE  2023-11-14T22:13:20  2023-11-14T23:13:20     01:00:00  n4",
        "root_10    INACTIVE  2023-11-14T22:13:20  2023-11-14T23:13:20     01:00:00  n4",
    ]
