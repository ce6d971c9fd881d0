"""The three format languages, and how a column is padded and cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bireme.slurm.formats.accounting import choose_columns, fixed_lines, parsable_lines
from bireme.slurm.formats.fields import plan_named, plan_percent
from bireme.slurm.formats.layout import AccountingSpec, Spec, parse_accounting, parse_named, parse_percent
from bireme.slurm.formats.sacct_fields import SACCT_ALIASES, SACCT_FIELDS, Row
from bireme.slurm.formats.squeue_fields import DEFAULT_FORMAT, JOB_FIELDS
from bireme.slurm.formats.values import Context

CONTEXT = Context(now=1000, stamp=lambda at: f"T{int(at)}")
JOB = {"job_id": 31, "name": "training", "state": "RUNNING", "elapsed_s": 7200, "time_limit_s": 93840}


def test_percent_fields_have_size_side_and_suffix() -> None:
    assert parse_percent("%.18i %9P|%j") == ("", [Spec("i", 18, True, " "), Spec("P", 9, False, "|"), Spec("j")])
    assert parse_percent("[%a]x%all").specs == [Spec("a", 0, False, "]x"), Spec("all")]
    assert parse_percent("plain") == ("plain", [])


def test_named_fields_are_twenty_wide_unless_told() -> None:
    assert parse_named("JobID,name:.10,state:8xyz,username:.") == [
        Spec("jobid", 20),
        Spec("name", 10, True),
        Spec("state", 8, False, "xyz"),
        Spec("username", 0, True),
    ]
    assert parse_named("jobid:###,name:") == [Spec("jobid", 0, False, "###"), Spec("name")]


def test_accounting_fields_have_width_and_side() -> None:
    assert parse_accounting("JobID%20,State%-12,End,Node%x") == [
        AccountingSpec("JobID", 20),
        AccountingSpec("State", 12, True),
        AccountingSpec("End"),
        AccountingSpec("Node"),
    ]


def test_values_are_cut_at_the_width_and_keep_their_beginning() -> None:
    plan = plan_percent(parse_percent("%3j|%.3j|%.10j|"), JOB_FIELDS, "")
    assert plan.header() == "NAM|NAM|      NAME|"
    assert plan.lines([JOB], CONTEXT) == ["tra|tra|  training|"]


def test_durations_are_shown_whole_although_their_header_is_cut() -> None:
    plan = plan_percent(parse_percent("%.9l"), JOB_FIELDS, "")
    assert plan.header() == "TIME_LIMI"
    assert plan.lines([JOB], CONTEXT) == ["1-02:04:00"]


def test_an_unknown_letter_is_reported_and_printed_as_written() -> None:
    plan = plan_percent(parse_percent("[%!] %i"), JOB_FIELDS, "Invalid job format specification")
    assert plan.complaints == ["Invalid job format specification: !"]
    assert plan.lines([JOB], CONTEXT) == ["[%!] 31"]


def test_an_unknown_name_is_reported_and_left_out() -> None:
    plan = plan_named(parse_named("jobid:5,foo,name:.10"), JOB_FIELDS, "Invalid job format specification")
    assert plan.complaints == ["Invalid job format specification: foo"]
    assert plan.lines([JOB], CONTEXT) == ["31     training"]


def test_percent_signs_in_suffixes_and_values_survive() -> None:
    plan = plan_percent(parse_percent("%i%%j 100"), JOB_FIELDS, "")
    assert plan.lines([{**JOB, "name": "50%s"}], CONTEXT) == ["3150%s 100"]


def test_a_width_that_would_fill_the_memory_is_cut() -> None:
    assert parse_percent("%999999999999i").specs[0].width == 65_535


@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from("%.:,0123456789ijPR¹²")), max_size=30))
def test_no_format_makes_printing_fail(text: str) -> None:
    for plan in (
        plan_percent(parse_percent(text), JOB_FIELDS, ""),
        plan_named(parse_named(text), JOB_FIELDS, ""),
    ):
        plan.header()
        plan.lines([JOB], CONTEXT)


def test_every_field_reads_only_what_it_needs() -> None:
    full = {
        **{need: None for field in JOB_FIELDS.fields for need in field.needs},
        **JOB,
        "priority": 5,
        "memory_mib": 1024,
        "memory_per": "gpu",
        "tres_allocated": {"cpu": 1, "mem": 512},
        "submit_time": 1,
        "start_time": 2,
    }
    for field in JOB_FIELDS.fields:
        narrow = {key: full[key] for key in field.needs}
        assert field.text(narrow, CONTEXT) == field.text(full, CONTEXT), field.names
        if field.key is not None:
            assert field.key(narrow, CONTEXT) == field.key(full, CONTEXT), field.names


def test_the_default_format_asks_for_few_keys() -> None:
    needs = plan_percent(parse_percent(DEFAULT_FORMAT), JOB_FIELDS, "").needs()
    assert "std_out" not in needs
    assert {"job_id", "partition", "state", "reason", "node_list", "elapsed_s"} <= needs


def test_sacct_marks_what_it_cut_except_times() -> None:
    row = Row({"job_id": 42, "state": "CANCELLED", "cancelled_by": 1000, "end_time": 5, "name": "a-long-job-name"})
    columns = choose_columns("JobID%4,State,JobName%8,End%2", SACCT_FIELDS, SACCT_ALIASES)
    assert fixed_lines(columns, [row], CONTEXT) == [
        "JobI      State  JobName En ",
        "---- ---------- -------- -- ",
        "  42 CANCELLED+ a-long-+ T5 ",
    ]
    assert parsable_lines(columns, [row], CONTEXT, header=False) == ["42|CANCELLED by 1000|a-long-job-name|T5"]
    assert parsable_lines(columns, [row], CONTEXT, header=False, delimiter="::", ending=True) == [
        "42::CANCELLED by 1000::a-long-job-name::T5::"
    ]


def test_sacct_takes_the_side_that_is_asked_for() -> None:
    row = Row({"job_id": 42, "state": "FAILED"})
    columns = choose_columns("state%-10,jobid%6", SACCT_FIELDS, SACCT_ALIASES)
    assert fixed_lines(columns, [row], CONTEXT, header=False) == ["FAILED         42 "]
