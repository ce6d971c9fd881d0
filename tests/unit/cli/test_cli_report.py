"""`bireme report` and `seff` as text, CSV and HTML, over answers as the daemon gives them."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

from bireme.cli.reporting import page, table, text
from bireme.core.telemetry.advice import advice
from bireme.core.telemetry.digest import Digest, GpuDigest, Level
from bireme.core.telemetry.efficiency import Had, Sum, Tally, efficiency
from bireme.slurm.formats.seff_lines import seff_lines, size_text
from bireme.store.codec import all_fields

HAD = Had(
    job_id=42, generation=1, user="ann", account="physics", state="COMPLETED", start=1000.0, end=4600.0,
    elapsed_s=3600.0, limit_s=7200.0, waited_s=60.0, nodes=1, cpus=4, memory_mib=16_384, gpus=2, cpu_s=1777.0,
    rss_mib=1024.0,
)  # fmt: skip
BUSY = GpuDigest("n1", "GPU-a", False, 3600.0, 3600.0, "gpu_sm_active", Level(50.0, 99.0), 10.0, energy_j=3.6e6)
IDLE = GpuDigest("n1", "GPU-b", False, 3600.0, 3600.0, "gpu_sm_active", Level(0.0, 0.0), 3600.0)
DIGEST = Digest(42, 1, 1000.0, 4600.0, gpus=(BUSY, IDLE), memory_mib=Level(500.0, 1024.0))


def stamp(at: float) -> str:
    return f"2026-11-10T00:00:{int(at) % 60:02}"


def told(had: Had = HAD, digest: Digest | None = DIGEST, name: str = "train") -> dict[str, Any]:
    used = efficiency(had, digest)
    derived = {key: getattr(used, key) for key in ("gpu_unused_s", "gpu_unmeasured_s", "gpu_use", "cpu_use")}
    return {
        "job": "42", "job_id": 42, "name": name, "state": had.state, "over": had.end is not None, "cluster": "big",
        "user_name": had.user, "group_name": "staff", "num_tasks": 1, "exit_code": 0, "memory_per": "node",
        "had": all_fields(had), "efficiency": {**all_fields(used), **derived}, "unmeasured": "" if digest else "nobody",
        "digest": all_fields(digest) if digest else None,
        "advice": [all_fields(each) for each in advice(had, digest, used)], "measured": digest is not None,
    }  # fmt: skip


def many(name: str = "train", user: str = "ann") -> dict[str, Any]:
    tally = Tally(0.0, 86_400.0, 10)
    had = replace(HAD, user=user)
    tally.add(had, efficiency(had, DIGEST), measured=True)
    unmeasured = replace(had, job_id=43)
    tally.add(unmeasured, efficiency(unmeasured, None), measured=False)
    derived = ("gpu_unused_s", "gpu_unmeasured_s", "gpu_use", "cpu_use")

    def row(total: Any) -> dict[str, Any]:
        return {**all_fields(total), **{key: getattr(total, key) for key in derived}}

    return {
        "start": 0.0, "end": 9000.0, "now": 9000.0, "period_s": 86_400.0, "total": row(tally.total), "damaged": 0,
        "users": [{"user": key, **row(total)} for key, total in tally.by_user().items()],
        "accounts": [{"account": key, **row(total)} for key, total in tally.by_account().items()],
        "periods": [{"start": key, **row(total)} for key, total in tally.by_period().items()],
        "jobs": [told(had, DIGEST, name), told(unmeasured, None, name)],
    }  # fmt: skip


def test_seff_prints_the_lines_that_programs_read_and_then_its_own() -> None:
    lines = list(seff_lines(told()))
    assert lines[:11] == [
        "Job ID: 42",
        "Cluster: big",
        "User/Group: ann/staff",
        "State: COMPLETED (exit code 0)",
        "Nodes: 1",
        "Cores per node: 4",
        "CPU Utilized: 00:29:37",
        "CPU Efficiency: 12.34% of 04:00:00 core-walltime",
        "Job Wall-clock time: 01:00:00",
        "Memory Utilized: 1.00 GB",
        "Memory Efficiency: 6.25% of 16.00 GB (16.00 GB/node)",
    ]
    assert "GPU Efficiency: 25.00% (SM activity) of 2.00 GPU-hours measured" in lines
    assert "Advice: 1 of 2 GPUs was never used: 1 would have been enough" in lines


def test_seff_says_what_was_not_measured() -> None:
    lines = list(seff_lines(told(replace(HAD, cpu_s=None, rss_mib=None, cpus=1), None)))
    assert "Cores: 1" in lines
    assert "Not measured: CPU, Memory" in lines
    assert "GPU Efficiency: not measured (nobody)" in lines


def test_seff_of_a_job_that_runs_or_waits() -> None:
    running = list(seff_lines(told(replace(HAD, end=None, state="RUNNING"))))
    assert "State: RUNNING" in running
    assert "WARNING: Efficiency statistics may be misleading for RUNNING jobs." in running
    waiting = list(seff_lines(told(replace(HAD, start=None, end=None, state="PENDING"), None)))
    assert waiting[-1] == "Efficiency not available for jobs in the PENDING state."


def test_sizes_as_seff_writes_them() -> None:
    assert [size_text(kib) for kib in (0, 1, 1023, 1024, 3 << 20)] == [
        "0.00 MB", "1.00 KB", "1023.00 KB", "1.00 MB", "3.00 GB",
    ]  # fmt: skip


def test_the_text_of_a_job_names_its_gpus_and_advice() -> None:
    lines = list(text.of_jobs({"jobs": [told()], "left_out": 0}, stamp))
    assert lines[0] == "Job 42 (train) of ann: COMPLETED"
    assert "  GPUs        25.0% of 2, 1 never used" in lines
    assert "  energy      1.00 kWh (GPUs)" in lines
    assert "  * 1 of 2 GPUs was never used: 1 would have been enough" in lines
    lines = list(text.of_jobs({"jobs": [told(digest=None)], "left_out": 3}, stamp))
    assert "  GPUs        2, not measured" in lines
    assert "  Not measured: nobody." in lines


def started_again(told: dict[str, Any]) -> dict[str, Any]:
    """The same job after another start, which was ended, and of whose GPUs nothing was measured."""
    had, both = replace(HAD, state="REQUEUED"), Sum()
    both.add(had, efficiency(had, None), measured=False)
    both.add(HAD, efficiency(HAD, DIGEST), measured=True)
    names = ("gpu_unused_s", "gpu_unmeasured_s", "gpu_use", "cpu_use")
    derived = {name: getattr(both, name) for name in names}
    used = efficiency(had, None)
    each = {"state": "REQUEUED", "had": all_fields(had), "efficiency": {**all_fields(used), "gpu_use": used.gpu_use}}
    return {**told, "starts": [each], "starts_left_out": 0, "sum": {**all_fields(both), **derived}}


def test_a_job_that_was_requeued_is_told_with_all_its_starts() -> None:
    lines = list(text.of_jobs({"jobs": [started_again(told())], "left_out": 0}, stamp))
    assert "  Above is its latest start; it was started 2 times:" in lines
    assert lines[-2].endswith("01:00:00  REQUEUED, 2 GPUs: not measured")
    assert lines[-1].startswith("    all starts: 02:00:00; 4.00 GPU-hours, 0.50 of them used, 2.00 not measured; ")
    assert "Starts: 2, 02:00:00 together; the above is of the last" in list(seff_lines(started_again(told())))
    assert "All starts" in page.of_jobs({"jobs": [started_again(told())], "left_out": 0}, stamp)


def test_a_job_that_waits_again_is_told_by_its_earlier_starts() -> None:
    waits = started_again(told(replace(HAD, start=None, end=None, state="PENDING"), None))
    lines = list(text.of_jobs({"jobs": [waits], "left_out": 0}, stamp))
    assert lines[1] == "  It waits again; it was started 2 times:"
    assert "REQUEUED" in lines[2]


def test_the_words_are_those_of_one_and_of_some() -> None:
    one = replace(HAD, gpus=1)
    idle = replace(DIGEST, gpus=DIGEST.gpus[1:])
    lines = list(text.of_jobs({"jobs": [told(one, idle)], "left_out": 1}, stamp))
    assert "  GPU         0.0% of 1, never used" in lines
    assert "  * its GPU was never used" in lines
    assert lines[-1].endswith("1 earlier task left out: name one (bireme report 42_7).")
    some = list(text.of_jobs({"jobs": [told(replace(HAD, gpus=8))], "left_out": 0}, stamp))
    assert "  GPUs        25.0% of 2 (of 8; the others were not measured), 1 never used" in some


def test_the_text_of_many_says_first_how_much_is_known() -> None:
    lines = list(text.of_many(many(), stamp))
    assert lines[0].startswith("Use of everybody, ")
    hidden = next(text.of_many({**many(), "whole": False}, stamp))
    assert hidden.startswith("Use of those whose use you may see, ")
    assert lines[1] == "2 runs, 1 of them measured; 50.0% of 4.00 GPU-hours were not measured."
    (row,) = [line for line in lines if line.startswith("ann")]
    assert row.split()[1:6] == ["2", "4.00", "0.50", "1.50", "2.00"]


def test_csv_leaves_empty_what_was_not_measured_and_makes_no_formula() -> None:
    rows = list(csv.DictReader(io.StringIO(table.csv_of(many(user="=cmd()")))))
    measured, unmeasured = [row for row in rows if row["kind"] == "run"]
    assert (measured["gpu_unused_s"], measured["energy_j"]) == ("5400", "3600000")
    assert (unmeasured["gpu_unused_s"], unmeasured["gpu_use"], unmeasured["energy_j"]) == ("", "", "")
    assert {row["user"] for row in rows if row["kind"] == "run"} == {"'=cmd()"}


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]


def test_a_page_is_whole_and_takes_no_text_for_tags() -> None:
    evil = "<script>alert(1)</script>"
    for made in (page.of_many(many(evil, evil), stamp), page.of_jobs({"jobs": [told(name=evil)]}, stamp)):
        tags = Tags()
        tags.feed(made)
        assert "script" not in tags.seen
        assert tags.links == []
        assert 'class="plot ' in made
        assert "prefers-color-scheme: dark" in made
        assert "&lt;script&gt;" in made


def test_a_page_of_nothing_says_so() -> None:
    nothing = {**many(), "total": {"starts": 0}}
    assert "No run ended" in page.of_many(nothing, stamp)
