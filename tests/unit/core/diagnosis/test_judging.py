"""The judgement: what counts before what, how sure an answer is, and that the order of files changes nothing."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as some

from bireme.core.diagnosis.judging import judge, of_state
from bireme.core.diagnosis.model import Clue, Diagnosis, Line, Source
from bireme.evidence.rulebook import load

LOADED = load()
BOOK = LOADED.book()
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB"
KEY = "KeyError: 'input_ids'"
GONE = "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
XID_79 = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
STEP = "Step {}, loss 2.31, 18234 tokens/s"


def lines(text: str, source: Source = "output", file: str = "out") -> list[Line]:
    written = text.strip("\n").split("\n")
    return [
        Line(text=each, source=source, file=file, order=place, number=place, last=len(written))
        for place, each in enumerate(written, 1)
    ]


def clues(*evidence: Line) -> list[Clue]:
    return [clue for line in evidence for clue in BOOK.clues(line)]


def judged(*evidence: Line) -> Diagnosis:
    return judge(clues(*evidence), LOADED.causes)


def watchdog(rank: int, sequence: int, operation: str = "ALLREDUCE") -> str:
    return (
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={sequence}, OpType={operation}, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran"
    )


def test_a_cause_wins_over_its_echoes_however_loud() -> None:
    answer = judged(*lines("\n".join([OOM, *[GONE] * 500, *[watchdog(rank, 7) for rank in range(64)]])))
    assert (answer.cause.id, answer.confidence) == ("gpu_out_of_memory", "high")
    assert {each.cause.id: each.why_not for each in answer.others} == {
        "dead_rank": "follows from it",
        "nccl_timeout": "follows from it",
    }


def test_the_first_of_two_causes_wins_and_is_not_sure() -> None:
    answer = judged(*lines(f"OSError: [Errno 28] No space left on device: '/scratch/a'\n{OOM}"))
    assert (answer.cause.id, answer.confidence) == ("storage_full", "medium")


def test_an_exception_is_an_outer_layer_where_a_line_knows_more() -> None:
    answer = judged(*lines(f"{KEY}\nImportError: cannot import name 'x' from 'transformers'"))
    assert (answer.cause.id, answer.others[0].why_not) == ("import_error", "an outer layer")


def test_what_the_program_outlived_is_not_why() -> None:
    went_on = "\n".join(STEP.format(step) for step in range(20))
    answer = judged(*lines(f"{OOM}\n{went_on}\n{KEY}"))
    assert answer.cause.id == "python_error"
    assert answer.ruled_out == ("Out of GPU memory (out:1): the program went on after it",)


def test_a_little_more_of_other_ranks_is_no_sign_of_health() -> None:
    assert judged(*lines(f"{OOM}\n{STEP.format(1)}\n{STEP.format(1)}\n{GONE}")).cause.id == "gpu_out_of_memory"


def test_output_that_was_written_late_does_not_hide_the_only_error() -> None:
    late = "\n".join(STEP.format(step) for step in range(20))
    answer = judged(*lines(f"Traceback (most recent call last):\n{OOM}\n{late}"))
    assert (answer.cause.id, answer.confidence) == ("gpu_out_of_memory", "low")
    assert "what looks like progress stands after it" in answer.why_so_sure


def test_progress_of_other_ranks_is_no_sign_of_health_for_this_one() -> None:
    went_on = [
        Line(text=STEP.format(n), file="out", order=10 + n, rank=n % 4, last=99) for n in range(24) if n % 4 != 3
    ]
    dead = Line(text=OOM, file="out", order=5, rank=3, last=99)
    assert judged(dead, *went_on).confidence == "high"
    assert judged(dead, *went_on, Line(text=KEY, file="out", order=60, rank=1)).cause.id == "gpu_out_of_memory"


def test_a_long_quiet_after_an_error_that_others_follow() -> None:
    far = Line(text=OOM, file="out", order=10, last=9000)
    near = Line(text=KEY, file="out", order=8990, last=9000)
    assert judged(far, near).cause.id == "python_error"
    assert judged(far).cause.id == "gpu_out_of_memory"


def test_nothing_explains_a_run_that_came_to_its_end() -> None:
    answer = judged(*lines(f"{OOM}\nTraining complete"))
    assert (answer.cause.id, answer.confidence) == ("unknown", "none")
    assert answer.collect


def test_a_warning_counts_only_at_the_end_and_is_never_more_than_low() -> None:
    warning = "WARNING: could not read /data/a.jpg: [Errno 5] Input/output error, skipping"
    assert judged(*lines(warning + "\nquiet" * 40)).cause.id == "unknown"
    assert judged(*lines("quiet\n" + warning)).confidence == "low"


def test_a_warning_just_before_an_error_that_it_leads_to_is_why() -> None:
    warning = "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11020)."
    error = "RuntimeError: No CUDA GPUs are available"
    answer = judged(*lines(f"{warning}\nTraceback (most recent call last):\n{error}"))
    assert (answer.cause.id, answer.confidence) == ("driver_cuda_mismatch", "low")
    assert judged(*lines(warning + "\nquiet" * 40 + f"\n{error}")).cause.id == "gpu_unavailable"


def test_hardware_that_several_jobs_met_goes_before_what_a_program_says() -> None:
    met = Line(text="mlx5_core 0000:5e:00.0 ib0: Link down", source="kernel", at=50.0, others=3)
    said = Line(text=OOM, at=40.0)
    assert judged(said, met).cause.id == "interconnect"
    alone = Line(text="mlx5_core 0000:5e:00.0 ib0: Link down", source="kernel", at=50.0)
    assert judged(said, alone).cause.id == "gpu_out_of_memory"


def test_a_fault_explains_what_it_leads_to_even_if_that_was_written_first() -> None:
    told = Line(text="RuntimeError: CUDA error: an illegal memory access was encountered", at=99.0)
    fault = Line(text=XID_79, source="kernel", at=100.0)
    answer = judged(told, fault)
    assert (answer.cause.id, answer.confidence) == ("gpu_fell_off_bus", "high")
    assert judged(Line(text=told.text, at=1.0), fault).cause.id == "illegal_memory_access"  # long before


def test_only_the_kernels_log_is_the_kernels_log() -> None:
    assert judged(*lines(XID_79)).cause.id == "unknown"
    assert judged(*lines(XID_79, source="kernel")).confidence == "high"
    handed_in = judged(*lines(XID_79, source="file"))
    assert (handed_in.cause.id, handed_in.confidence) == ("gpu_fell_off_bus", "medium")
    assert "anybody may have written" in handed_in.why_so_sure


def test_the_rank_that_did_not_arrive_is_named() -> None:
    state = "[PG 1 Rank {}] Timeout at NCCL work: {}, last enqueued NCCL work: {}, last completed NCCL work: 1579."
    late = judged(*lines("\n".join(state.format(rank, 1580, 1578 if rank == 3 else 1582) for rank in range(8))))
    assert late.cause.id == "nccl_timeout"
    assert late.summary.startswith("Rank 3 did not arrive: it was at collective 1578 when others were at 1582.")
    silent = judged(*lines("\n".join(watchdog(rank, 7) for rank in (0, 1, 2, 4, 5, 6, 7))))
    assert "rank 3 said nothing of it" in silent.summary


def test_ranks_in_different_calls_at_one_collective_are_a_mismatch() -> None:
    answer = judged(*lines(f"{watchdog(0, 7)}\n{watchdog(1, 7, 'BROADCAST')}"))
    assert (answer.cause.id, answer.confidence) == ("collective_mismatch", "medium")
    assert "rank 0 in ALLREDUCE; rank 1 in BROADCAST" in answer.summary


def test_a_time_limit_of_the_record_is_after_what_the_program_said() -> None:
    record = Line(text="state TIMEOUT", source="record", at=100.0)
    assert judged(record).confidence == "high"
    assert judged(record, *lines(OOM)).cause.id == "gpu_out_of_memory"
    went_on = "\n".join(STEP.format(step) for step in range(20))
    answer = judged(record, *lines(f"{OOM}\n{went_on}"))
    assert (answer.cause.id, answer.confidence) == ("time_limit", "high")


_PIECES = some.lists(
    some.sampled_from([OOM, KEY, GONE, XID_79, watchdog(2, 5), STEP.format(3), "quiet", "Killed"]), max_size=12
)


@given(some.lists(_PIECES, max_size=4), some.randoms(use_true_random=False))
def test_the_order_in_which_files_come_changes_nothing(files: list[list[str]], chance: random.Random) -> None:
    evidence = [lines("\n".join(texts), file=f"rank{rank}") for rank, texts in enumerate(files)]
    flat = [line for file in evidence for line in file]
    chance.shuffle(evidence)
    assert judge(clues(*flat), LOADED.causes) == judge(
        clues(*[each for file in evidence for each in file]), LOADED.causes
    )


@given(_PIECES, some.integers(min_value=0, max_value=30))
def test_more_echoes_change_no_cause(texts: list[str], more: int) -> None:
    before = judged(*lines("\n".join([OOM, *texts])))
    after = judged(*lines("\n".join([OOM, *texts, *[GONE] * more])))
    if before.confidence in ("high", "medium") and before.cause.id == "gpu_out_of_memory":
        assert (after.cause, after.summary, after.confidence) == (before.cause, before.summary, before.confidence)


def test_what_ended_well_is_not_explained() -> None:
    """Whatever it wrote on the way."""
    wrote = judged(*lines(OOM))
    well = of_state(wrote, "COMPLETED", LOADED.causes)
    assert (well.cause.id, well.confidence, well.evidence) == ("completed", "high", ())
    assert well.ruled_out == ("Out of GPU memory: it ended well all the same",)
    assert of_state(judged(*lines("done")), "COMPLETED", LOADED.causes).ruled_out == ()
    assert of_state(wrote, "FAILED", LOADED.causes) is wrote
