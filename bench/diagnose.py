"""How long a diagnosis of one large log takes, beside reading the file once.

A log of a training run, with an error in its middle and one at its end. CPU times of this process, the log in the page
cache: what is compared is the work, not the disk. `grep -c` of one word stands beside it as what people would do.
"""

from __future__ import annotations

import random
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.folders import new_folder
from bench.results import Row, Target
from bench.sizes import Sizes
from bireme.core.diagnosis.judging import judge
from bireme.evidence.reading import Output, Reader
from bireme.evidence.rulebook import load
from bireme.evidence.searching import Searcher

ERROR = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.10 GiB\n"
CAUSE = "gpu_out_of_memory"
PIECE_LINES = 50_000
RANKS = 64
MAX_S_A_GIB = 15.0
MAX_RATIO = 60.0


def measure(sizes: Sizes) -> Iterator[Row]:
    folder = Path(new_folder("diagnose"))
    log = folder / "train.out"
    lines = _write(log, sizes.log_mib << 20)
    once = min(_cpu_s(lambda: _read(log)) for _ in range(3))
    spent = _cpu_s(lambda: _diagnose([log], lines))
    gib = log.stat().st_size / (1 << 30)
    details = {"bytes": log.stat().st_size, "lines": lines[1], "grep -c, CPU s": _grep_s(log)}
    name = f"a log of {sizes.log_mib} MiB, errors in its middle and at its end"
    yield Row(
        "diagnose",
        f"{name}, CPU",
        spent,
        "s",
        floor=once,
        target=Target("<", MAX_RATIO, of_ratio=True),
        details=details,
    )
    yield Row("diagnose", f"{name}, CPU a GiB", spent / gib, "s", target=Target("<", MAX_S_A_GIB))
    ranks = [folder / f"rank_{rank}.out" for rank in range(RANKS)]
    for path in ranks:
        shutil.copyfile(log, path) if path == ranks[0] else path.write_text("step 1 loss 0.5\n" * 20_000)
    yield Row(
        "diagnose",
        f"the outputs of {RANKS} ranks, one of them that log, CPU",
        _cpu_s(lambda: _diagnose(ranks, lines)),
        "s",
    )


def _write(path: Path, size: int) -> tuple[int, int]:
    """The numbers of the lines with errors."""
    draw = random.Random(1)
    piece = "".join(
        f"2026-11-15 06:50:15,{number % 1000:03d} | INFO | train.py:{number % 300} | step {number} loss "
        f"{draw.random():.4f} lr 3.0e-04 tokens/s {draw.randrange(10**6)} mem 61.2GiB grad_norm {draw.random():.3f}\n"
        for number in range(PIECE_LINES)
    )
    pieces = max(2, size // len(piece))
    with open(path, "w") as file:
        for number in range(pieces):
            file.write(ERROR if number == pieces // 2 else "")
            file.write(piece)
        file.write(ERROR)
    return pieces // 2 * PIECE_LINES + 1, pieces * PIECE_LINES + 2


def _read(path: Path) -> None:
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 20):
            pass


def _diagnose(paths: list[Path], lines: tuple[int, int]) -> None:
    loaded = load()
    with Searcher(loaded.book()) as searcher:
        found = Reader(searcher).read([Output(path=str(path), source="file") for path in paths])
    assert judge(found.clues, loaded.causes).cause.id == CAUSE
    assert {clue.line.number for clue in found.clues if clue.rule.cause == CAUSE} == set(lines)
    assert not found.problems, found.problems


def _grep_s(path: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["grep", "-c", "CUDA out of memory", str(path)], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _cpu_s(what: Callable[[], object]) -> float:
    began = time.process_time()
    what()
    return time.process_time() - began
