"""Dependencies. Literal expectations come from Slurm 22.05 (sbatch -d, squeue %E)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.core.model.jobs import Dependencies, Dependency, DependencyKind
from bireme.slurm.dependencies import format_dependencies, parse_dependencies
from bireme.slurm.errors import SlurmSyntaxError

SHOWN = [
    ("afterok:1", "afterok:1(unfulfilled)"),
    ("AFTEROK:1", "afterok:1(unfulfilled)"),
    ("1", "afterany:1(unfulfilled)"),
    ("1_2", "afterany:1_2(unfulfilled)"),
    ("1,2", "afterany:1(unfulfilled),afterany:2_*(unfulfilled)"),
    ("afterok:1:2,afterany:3", "afterok:1(unfulfilled),afterok:2_*(unfulfilled),afterany:3(unfulfilled)"),
    ("afterok:1?afterany:3", "afterok:1(unfulfilled)?afterany:3(unfulfilled)"),
    ("afterok:1,afterany:2?after:3", "afterok:1(unfulfilled)?afterany:2_*(unfulfilled)?after:3(unfulfilled)"),
    ("after:1+5:2+6:3", "after:1+5(unfulfilled),after:2_*+6(unfulfilled),after:3+6(unfulfilled)"),
    ("after:2:1+5", "after:2_*(unfulfilled),after:1+5(unfulfilled)"),
    ("after:2_4+3", "after:2_4+3(unfulfilled)"),
    ("afternotok:7", "afternotok:7(unfulfilled)"),
    ("aftercorr:2", "aftercorr:2_*(unfulfilled)"),
    ("afterok:2_*", "afterok:2_*(unfulfilled)"),
    ("afterok:2_[2-4]", "afterok:2_2(unfulfilled),afterok:2_3(unfulfilled),afterok:2_4(unfulfilled)"),
    ("afterok:2_[2,4]", "afterok:2_2(unfulfilled),afterok:2_4(unfulfilled)"),
    ("singleton", "singleton(unfulfilled)"),
    ("singleton,afterok:1", "singleton(unfulfilled),afterok:1(unfulfilled)"),
    ("singleton?afterok:1", "singleton(unfulfilled)?afterok:1(unfulfilled)"),
    ("afterok:1:1", "afterok:1(unfulfilled)"),
    ("afterok: 1", "afterok:1(unfulfilled)"),
    ("", ""),
    ("0", ""),
]


@pytest.mark.parametrize(("text", "shown"), SHOWN)
def test_what_sbatch_takes_squeue_shows(text: str, shown: str) -> None:
    assert format_dependencies(parse_dependencies(text), is_array=lambda job_id: job_id == 2) == shown


def test_reads_into_the_cores_types() -> None:
    assert parse_dependencies("after:5+10?afterok:7_3") == Dependencies(
        (Dependency(DependencyKind.AFTER, 5, None, 600), Dependency(DependencyKind.AFTER_OK, 7, 3)), any_suffices=True
    )


def test_the_state_of_each_condition_is_the_callers_to_say() -> None:
    dependencies = parse_dependencies("afterok:1:3")
    shown = format_dependencies(dependencies, state_of=lambda item: "failed" if item.job_id == 3 else "unfulfilled")
    assert shown == "afterok:1(unfulfilled),afterok:3(failed)"


@pytest.mark.parametrize(
    "text",
    [
        *("afterok", "afterok:", "afterok:x", "afterok:0", "afterok:1:", "afterok:1::2", "afterok:1.0", "afterok:2_x"),
        *(
            "foo:1",
            "none",
            "1:2",
            ",afterok:1",
            "afterok:1,",
            "afterok:1,,afterok:2",
            " afterok:1",
            "afterok:1 ,after:2",
        ),
        *("after:1+", "after:1+x", "after:1+0", "singleton:1", "afterok:2_[4-2]", "afterok:2_["),
    ],
)
def test_refuses_what_sbatch_refuses(text: str) -> None:
    with pytest.raises(SlurmSyntaxError, match=r"^Job dependency problem"):
        parse_dependencies(text)


def test_expanding_another_job_is_not_supported() -> None:
    with pytest.raises(SlurmSyntaxError, match=r"^Requested operation not supported"):
        parse_dependencies("expand:1")


@given(st.text() | st.text(alphabet="afterokny:0123456789,?_*+[]-"))
def test_any_text_is_a_dependency_or_a_syntax_error(text: str) -> None:
    try:
        dependencies = parse_dependencies(text)
    except SlurmSyntaxError:
        return
    shown = format_dependencies(dependencies).replace("(unfulfilled)", "")
    assert parse_dependencies(shown).items == dependencies.items
