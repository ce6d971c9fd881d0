"""Traces: what is read, and what is said about rows that cannot be used."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.sim.workloads import generator, sacct
from bireme.sim.workloads.reading import read_workload, workload_of_history
from bireme.sim.workloads.trace import BadTraceError, TraceJob, Workload

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
SWF = """; UnixStartTime: 1000000
; MaxNodes: 128
; MaxProcs: 256
    1        0     10   1451  128     -1    -1   -1   3600    -1  1   7   2  -1  1 -1 -1 -1
    2     1460     -1   3726   -1     -1    -1   64     -1  2048  0   8   2  -1  1 -1 -1 -1
"""
SACCT = """JobID|User|Account|Partition|Submit|Start|End|Timelimit|ReqMem|AllocTRES|State|ExitCode
12|ada|ml|gpu|2025-01-01T00:00:00|2025-01-01T00:10:00|2025-01-01T01:10:00|1-00:00:00|4Gc|billing=16,cpu=16,gres/gpu:h100=8,gres/gpu=8,mem=1T,node=2|COMPLETED|0:0
12.batch|||||||||||
13|bob|ml|gpu|2025-01-01T00:05:00|2025-01-01T00:06:00|2025-01-01T00:07:00|UNLIMITED|0|cpu=4,mem=1.50G,node=1|FAILED|2:0
14|bob|ml|gpu|2025-01-01T00:05:00|Unknown|2025-01-01T00:07:00|UNLIMITED|0||CANCELLED by 5|0:0
"""
PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 06:13:03,100.0,4,400.0,6214e9
"""


def read(folder: Path, text: str, *, skip_bad: bool = False) -> Workload:
    path = folder / "trace"
    path.write_text(text)
    return read_workload(str(path), skip_bad=skip_bad)


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(BadTraceError) as caught:
        read(folder, text)
    return str(caught.value).replace(str(folder / "trace"), "trace")


def test_swf(tmp_path: Path) -> None:
    first, second = (found := read(tmp_path, SWF)).jobs
    assert (first.submit, first.run_s, first.cpus, first.limit_s, first.waited_s) == (
        1_000_000.0,
        1451.0,
        128,
        3600,
        10,
    )
    assert (first.user, first.account, second.cpus, second.memory_mib) == ("user7", "group2", 64, 2)
    assert second.exit_code == 1
    assert found.cluster_hint == "128x2"


def test_sacct_takes_what_it_finds(tmp_path: Path) -> None:
    found = read(tmp_path, SACCT, skip_bad=True)
    first, second = found.jobs
    assert (first.run_s, first.waited_s, first.limit_s) == (3600.0, 600.0, 86_400)
    assert (first.nodes, first.cpus, first.gpus, first.gpu_types) == (2, 16, 8, ("h100",))
    assert first.memory_mib == 512 * 1024, "a TRES names the whole job's memory"
    assert (second.memory_mib, second.exit_code, second.limit_s) == (1537, 2, None)
    assert found.skipped() == {"it never ran (CANCELLED by 5)": 1}


@pytest.mark.parametrize(
    ("columns", "row", "memory_mib"),
    [
        ("Submit|ElapsedRaw|NNodes|NCPUS|ReqMem", "100|60|2|8|4Gn", 4096),
        ("Submit|ElapsedRaw|NNodes|NCPUS|ReqMem", "100|60|2|8|1Gc", 4096),
        ("Submit|ElapsedRaw|NNodes|NCPUS|ReqMem", "100|60|2|8|8G", 4096),
        ("Submit|ElapsedRaw|NNodes|NCPUS|ReqMem", "100|60|2|8|500M", 250),
        ("Submit|Elapsed|NNodes|NCPUS", "100|00:01:00|2|8", None),
    ],
)
def test_sacct_in_older_words(tmp_path: Path, columns: str, row: str, memory_mib: int | None) -> None:
    (job,) = read(tmp_path, f"{columns}\n{row}\n").jobs
    assert (job.submit, job.run_s, job.nodes, job.cpus, job.memory_mib) == (100.0, 60.0, 2, 8, memory_mib)


def test_sacct_names_the_columns_it_needs(tmp_path: Path) -> None:
    text = refusal(tmp_path, "JobID|User\n1|ada\n")
    assert text == "trace:1: the columns Submit, ElapsedRaw, AllocTRES are missing; add them to sacct's -o"


def test_philly_is_put_in_order(tmp_path: Path) -> None:
    first, second = read(tmp_path, PHILLY).jobs
    assert (first.gpus, first.partition, first.run_s) == (4, "6214e9", 100.0)
    assert second.submit - first.submit == 2932


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("2017-10-09 07:01:55,66.0,1", "trace:4: 3 of 5 columns: the line is cut short"),
        ("2017-10-09 07:01:55,-66.0,1,-66.0,x", "trace:4: the run time is negative"),
        (
            "2017-10-09 07:01:55,1h,1,3600,x",
            "trace:4: duration: '1h' is not a number (seconds and counts have no unit here)",
        ),
        ("2017-10-09 07:01:55,1.1,1,66.0,x", "trace:4: gpu_time is not duration x num_gpus: are the units mixed?"),
        ("yesterday,66.0,1,66.0,x", "trace:4: timestamp: 'yesterday' is not a time (2017-10-09 07:01:55)"),
        ("2017-10-09 07:01:55,66.0,-1,-66.0,x", "trace:4: it asks for a negative number of GPUs, CPUs or nodes"),
        ("2017-10-09 07:01:55,66.0,0,0,x", "trace:4: it asks for no GPU, no CPU and no node"),
    ],
)
def test_a_bad_row_is_named_with_line_and_reason(tmp_path: Path, row: str, said: str) -> None:
    assert refusal(tmp_path, PHILLY + row + "\n").splitlines() == [
        said,
        "--skip-bad leaves such rows out and counts them",
    ]
    found = read(tmp_path, PHILLY + row + "\n", skip_bad=True)
    assert (len(found.jobs), sum(found.skipped().values())) == (2, 1)


def test_a_cut_compressed_file(tmp_path: Path) -> None:
    rows = "".join(f"2017-10-09 07:00:{n % 60:02d},{n}.0,1,{n}.0,x\n" for n in range(1, 5000))
    whole = gzip.compress((PHILLY + rows).encode())
    (tmp_path / "trace").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadTraceError, match="the compressed file ends here, in the middle"):
        read_workload(str(tmp_path / "trace"))
    assert len(read_workload(str(tmp_path / "trace"), skip_bad=True).jobs) > 100


def test_swf_rows_that_are_no_jobs(tmp_path: Path) -> None:
    never = "    3     1460     -1   -1   -1     -1    -1   64     -1  2048  5   8   2  -1  1 -1 -1 -1\n"
    short = "    4     1460     -1   3726\n"
    assert refusal(tmp_path, SWF + never + short).splitlines()[:2] == [
        "trace:6: it was cancelled before it ran",
        "trace:7: 4 of 18 fields: the line is cut short or no SWF",
    ]


def test_something_else_is_no_trace(tmp_path: Path) -> None:
    assert "not a trace that is known" in refusal(tmp_path, "a,b,c\n1,2,3\n")


def test_history_leaves_out_what_never_ran() -> None:
    ran = {
        "job_id": 7, "state": "COMPLETED", "submit_time": 10.0, "start_time": 20.0, "end_time": 50.0, "name": "a",
        "tres_allocated": {"cpu": 4, "mem": 8192, "node": 2, "gres/gpu": 4, "gres/gpu:h100": 4}, "user_name": "ada",
        "partition": "main", "time_limit_s": 3600, "account": "ml", "qos": "normal", "suspended_s": 5.0,
    }  # fmt: skip
    never = {**ran, "job_id": 8, "start_time": None, "state": "CANCELLED"}
    found = workload_of_history([ran, never], "history")
    assert found.jobs == (
        TraceJob(submit=10.0, run_s=25.0, nodes=2, cpus=4, gpus=4, gpu_types=("h100",), memory_mib=4096, limit_s=3600,
                 user="ada", account="ml", partition="main", qos="normal", name="a", waited_s=10.0, line=7),
    )  # fmt: skip
    assert found.skipped() == {"it never ran (CANCELLED)": 1}


def test_the_generator_repeats_itself() -> None:
    text = "generate:jobs=300 seed=5 days=14 arrival=weekly sizes=1:3,8:1 users=6 accounts=2"
    first, again = read_workload(text), read_workload(text)
    assert first == again
    assert first != read_workload(text.replace("seed=5", "seed=6"))
    assert {job.gpus for job in first.jobs} == {1, 8}
    assert all(job.limit_s is not None and job.limit_s >= job.run_s for job in first.jobs)
    nights = [job for job in first.jobs if (job.submit - generator.START) % 86_400 < 6 * 3600]
    assert len(nights) < len(first.jobs) / 8


@pytest.mark.parametrize("text", ["generate:days=0", "generate:jbos=3", "generate:sizes=a", "generate:arrival=never"])
def test_the_generator_says_what_it_knows(text: str) -> None:
    with pytest.raises(generator.BadGeneratorError):
        read_workload(text)


@given(st.lists(st.text(alphabet="0123456789|.:-TGMKnc=,gpu/abU ", max_size=60), max_size=5))
def test_no_dump_of_sacct_is_anything_but_jobs_or_reasons(lines: list[str]) -> None:
    heading = "Submit|Elapsed|ReqMem|AllocTRES|Timelimit"
    for _, row in sacct.rows([heading, *lines]):
        assert isinstance(row, TraceJob) or row


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the public traces in ../shared/data")
@pytest.mark.parametrize(
    ("name", "jobs", "skipped"),
    [
        ("philly/philly_jobs_82247.csv.gz", 82_247, 0),
        ("itp/cluster09.csv.gz", 11_134, 0),
        ("swf/NASA-iPSC-1993-3.1-cln.swf.gz", 18_239, 0),
        ("swf/HPC2N_first_part_alea.swf.gz", 3_145, 25),
        ("openb/openb_pod_list_default.csv.gz", 7_255, 897),
    ],
)
def test_public_traces(name: str, jobs: int, skipped: int) -> None:
    found = read_workload(str(SHARED / name), skip_bad=True)
    assert (len(found.jobs), sum(found.skipped().values())) == (jobs, skipped)


def test_jobs_in_a_line_come_when_they_are_said_to() -> None:
    found = read_workload("jobs:1x4 for 90min at 1-09:30, 2x8 for 12h")
    assert [(job.submit - found.jobs[0].submit, job.run_s, job.gpus, job.line) for job in found.jobs] == [
        (0.0, 43_200.0, 8, 1), (0.0, 43_200.0, 8, 2), (86_400.0 + 9.5 * 3600, 5400.0, 4, 3),
    ]  # fmt: skip
    assert found.jobs[0].submit % 86_400 == 0.0
