"""Logs are read whole where it matters, with the right line numbers, whatever is in them and whatever lies there."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import socket
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.evidence.reading_rules import CAUSES, ERROR, RULES, numbers, read, read_outputs

from bireme.core.diagnosis.matching import Rulebook
from bireme.core.diagnosis.model import Rule
from bireme.evidence.logs import Limits
from bireme.evidence.opened import NotTheirsError, open_output
from bireme.evidence.reading import Output
from bireme.evidence.triggers import PAGE, TRIGGERS, chosen, newlines, pages_with

SMALL = Limits(whole=64 << 10, around=64 << 10)
DULL = "step {} loss 0.1\n"


def dull(count: int) -> str:
    return "".join(DULL.format(number) for number in range(count))


def test_an_error_at_the_beginning_in_the_middle_and_at_the_end(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(f"{ERROR}\n{dull(100_000)}{ERROR}\n{dull(100_000)}{ERROR}")
    assert numbers(read(log, limits=SMALL)) == [1, 100_002, 200_003]


def test_numbers_are_those_that_sed_counts(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("\n\n\r\n" + "x" * 3_000_000 + "\n" + dull(50_000) + f"{ERROR}\n" + dull(50_000))
    found = read(log, limits=SMALL)
    (number,) = numbers(found)
    assert log.read_text().split("\n")[number - 1] == ERROR
    last = log.read_text().rstrip("\n").split("\n")
    assert [(line.number, line.text) for line in found.ends] == [
        (len(last) - back, last[-1 - back].strip()) for back in (2, 1, 0)
    ]


def test_a_hole_of_terabytes_is_passed_over(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    with open(log, "wb") as file:
        file.write(f"{ERROR}\n".encode())
        file.truncate(8 << 40)
        file.seek(0, os.SEEK_END)
        file.write(f"\n{ERROR}\n".encode())
    assert numbers(read(log)) == [1, 3]


def test_zeros_that_were_written_are_no_hole(tmp_path: Path) -> None:
    """Each line is read once, also where a file's buffer ends among the zeros."""
    log = tmp_path / "a.log"
    log.write_bytes(f"{ERROR}\n".encode() + bytes((5 << 19) + 4321) + f"\n{ERROR}\n".encode() + bytes(3 << 20))
    assert numbers(read(log)) == [1, 3]


def test_a_flood_of_one_error_is_told_by_its_ends(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(f"{ERROR}\n" * 200_000)
    found = numbers(read(log))
    assert found[0] == 1
    assert found[-1] == 200_000


def test_the_last_line_has_no_newline(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(f"one\ntwo\n{ERROR}")
    found = read(log)
    assert numbers(found) == [3]
    assert [line.number for line in found.ends] == [1, 2, 3]


def test_of_many_the_first_and_the_last_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text((ERROR + "\n" + dull(20)) * 20_000)
    found = numbers(read(log, limits=SMALL))
    assert found[:3] == [1, 22, 43]
    assert found[-1] == 19_999 * 21 + 1
    assert len(found) == 44
    assert max(after - before for before, after in pairwise(found[:40])) < 1_000


def test_each_rank_has_its_first_in_one_file(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("".join(f"[rank{rank}]: {ERROR}\n" for rank in range(20) for _ in range(50)))
    found = read(log)
    assert {clue.line.rank for clue in found.clues} == set(range(20))
    assert found.clues[0].line.text == ERROR


def test_time_that_is_over_passes_the_middle_over_and_says_so(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(f"{ERROR}\n{dull(400_000)}{ERROR}\n")
    found = read(log, limits=Limits(whole=64 << 10, around=64 << 10, seconds=0))
    assert numbers(found) == [1, 0]
    (problem,) = found.problems
    assert "MiB" in problem
    assert "not read" in problem


def test_colours_progress_bars_and_half_signs(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(
        b"10%|#|\r20%|##|\r\x1b[31mCUDA \x1b[1mout of memory\x1b[0m. Tried 2GiB\r30%|###|\n"
        b"\xe2\x82 CUDA out of memory. Tried 3GiB\n"
        b"\x1b]0;title\x07CUDA out of memory. Tried 4GiB\x00\n"
    )
    found = read(log)
    assert numbers(found) == [1, 2, 3]
    assert [clue.named["wanted"] for clue in found.clues] == ["2GiB", "3GiB", "4GiB"]
    assert "\x1b" not in "".join(clue.line.text for clue in found.clues)


def test_a_line_of_many_megabytes(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("first\n" + "x" * 5_000_000 + ERROR + "y" * 5_000_000 + "\nlast\n")
    found = read(log)
    assert numbers(found) == [2]
    assert len(found.clues[0].line.text) <= 4_000


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress], ids=["gzip", "bzip2", "xz"])
def test_packed_logs(tmp_path: Path, pack: object) -> None:
    log = tmp_path / "a.log.packed"
    text = f"{dull(100_000)}{ERROR}\n{dull(100_000)}".encode()
    log.write_bytes(pack(text) + pack(f"{ERROR}\n".encode()))  # type: ignore[operator]
    assert numbers(read(log, limits=SMALL)) == [100_001, 200_002]


def test_a_packed_log_that_is_torn_or_far_too_large(tmp_path: Path) -> None:
    torn = tmp_path / "torn.gz"
    packed = gzip.compress(os.urandom(1 << 20).hex().encode() + f"\n{ERROR}\n".encode())
    torn.write_bytes(gzip.compress(f"{ERROR}\n".encode()) + packed[: len(packed) // 2] + b"broken" * 999)
    found = read(torn)
    assert numbers(found) == [1]
    assert "was not read to its end" in found.problems[0]
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(gzip.compress(f"{ERROR}\n".encode() + b"\n" * (64 << 20)))
    found = read(bomb, limits=Limits(unpacked=1 << 20))
    assert numbers(found) == [1]
    assert "more than is unpacked" in found.problems[0]


def test_zstd_is_said(tmp_path: Path) -> None:
    log = tmp_path / "a.zst"
    log.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(100))
    assert "zstd -d" in read(log).problems[0]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16(tmp_path: Path, encoding: str) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(f"eins\n{ERROR} über\n".encode(encoding))
    assert numbers(read(log)) == [2]


def test_holes_are_passed_over(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    with open(log, "wb") as file:
        file.write(b"one\n")
        file.seek(30 << 20)
        file.write(f"{ERROR}\n".encode())
    assert numbers(read(log)) == [2]


def test_what_is_no_text_is_not_searched(tmp_path: Path) -> None:
    program = tmp_path / "model.so"
    program.write_bytes(bytes(range(256)) * 100 + ERROR.encode())
    found = read(program)
    assert found.clues == []
    assert "no text" in found.problems[0]


def test_what_is_no_file_makes_nobody_wait(tmp_path: Path) -> None:
    pipe, door = tmp_path / "pipe", tmp_path / "door"
    os.mkfifo(pipe)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(door))
        found = read(pipe, door, "/dev/zero", tmp_path / "absent", "a\0b")
    assert len(found.problems) == 5
    assert "Permission" not in " ".join(found.problems)


def test_another_users_file_is_not_shown_to_who_may_read_more(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(ERROR)
    mine, other = os.geteuid(), os.geteuid() + 1
    with pytest.raises(NotTheirsError):
        open_output(str(log), other)
    found = read(log, owner=other)
    assert (found.clues, found.ends) == ([], [])
    assert "not a file of the job's owner" in found.problems[0]
    assert numbers(read(log, owner=mine, strictly=True)) == [1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_even_the_owner_does_not_show_others_files_where_others_see_the_answer(tmp_path: Path) -> None:
    log, link = tmp_path / "theirs.log", tmp_path / "slurm-1.out"
    log.write_text(ERROR)
    os.chown(log, 12345, 12345)
    link.symlink_to(log)
    assert numbers(read(link, owner=0)) == [1]
    assert read(link, owner=0, strictly=True).clues == []


def test_a_folder_of_ranks(tmp_path: Path) -> None:
    for rank in range(3):
        folder = tmp_path / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(ERROR if rank == 2 else "fine")
    (tmp_path / "model.pt").write_text(ERROR)
    (tmp_path / "elsewhere").symlink_to("/etc")
    (clue,) = read(tmp_path).clues
    assert clue.line.rank == 2


def test_the_kernels_words_are_only_believed_from_the_kernels_log(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus\n")
    assert read(log).clues == []
    (clue,) = read_outputs([Output(path=str(log), source="kernel")]).clues
    assert clue.line.source == "kernel"


def test_a_file_that_becomes_shorter_while_it_is_read(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(f"{ERROR}\n{dull(10)}")
    with open_output(str(log), None) as file:
        os.truncate(log, 10)
        assert file.read() == ERROR[:10].encode()


def test_stacks_in_a_log_become_lines_of_the_source_trace(tmp_path: Path) -> None:
    log = tmp_path / "rank_3.log"
    log.write_text(
        "Fatal Python error: Aborted\n\nCurrent thread 0x00007f12 (most recent call first):\n"
        '  File "/opt/site-packages/torch/distributed/distributed_c10d.py", line 2806 in all_reduce\n'
        '  File "/home/a/train.py", line 71 in step\n'
    )
    (clue,) = read(log).clues
    assert (clue.line.source, clue.line.number, clue.line.rank) == ("trace", 3, 3)
    assert clue.line.text.endswith(
        "all_reduce (torch/distributed/distributed_c10d.py:2806), called by step (home/a/train.py:71)"
    )


@settings(max_examples=60)
@given(st.binary(max_size=3000), st.integers(0, 3))
def test_random_bytes_harm_nobody(data: bytes, head: int) -> None:
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"bireme-random-{os.getpid()}.log"
    path.write_bytes((b"", b"\x1f\x8b", b"BZh", b"\x80\x04")[head] + data)
    try:
        found = read(path)
    finally:
        path.unlink()
    assert all(line.number <= data.count(b"\n") + 2 for line in found.ends)


@given(st.binary(max_size=200), st.integers(0, 3), st.sampled_from(TRIGGERS))
def test_no_trigger_is_missed(before: bytes, more: int, trigger: bytes) -> None:
    data = bytes(600_000 - 100 + more) + before + trigger.upper() + b"x"
    assert (len(data) - 1 - len(trigger)) // PAGE in pages_with(data, TRIGGERS)
    assert newlines(data) == data.count(b"\n")


def test_a_word_that_always_stands_there_says_nothing() -> None:
    assert b"rror" not in chosen(b"step 1 error 0.5\n" * 1000)
    assert chosen(b"".join(TRIGGERS) * 1000) == TRIGGERS


def test_what_a_program_went_on_with_is_seen_at_the_end_and_only_there(tmp_path: Path) -> None:
    """Signs of health are in most lines: only the last ones are looked for, and they come after the error."""
    goes_on = Rule(id="goes-on", pattern=r"^step \d+ loss", words=("loss",), role="progress")
    log = tmp_path / "a.log"
    log.write_text(dull(20_000) + f"{ERROR}\n" + dull(10_000))
    found = read(log, book=Rulebook(CAUSES, [*RULES, goes_on]))
    signs = numbers(found, "goes-on")
    assert signs[-1] == 30_001
    assert min(signs) > 20_001
    assert numbers(found) == [20_001]
    assert {clue.line.last for clue in found.clues} == {30_001}
    log.write_text(dull(30_000) + ERROR)
    found = read(log, book=Rulebook(CAUSES, [*RULES, goes_on]), limits=Limits(whole=64 << 10, seconds=0))
    assert found.clues[-1].rule.id == "oom"
    assert found.clues[-1].line.order == found.clues[-1].line.last
