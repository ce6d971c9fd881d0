"""Filename patterns. Literal expectations are the files a Slurm 22.05 job with these patterns wrote."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.slurm.filenames import FilenameValues, default_output, expand_filename, specifiers

BATCH = FilenameValues(job_id=338, node="vm", user="root", job_name="nm")
ARRAY = FilenameValues(job_id=361, array_job_id=359, array_task_id=13, node="vm", user="root", job_name="nm")
STEP = FilenameValues(job_id=128, step=0, node="n2", node_index=1, task_index=3, user="ann", job_name="train")


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("a-%%.x", "a-%.x"),
        ("b-%A-%a", "b-338-4294967294"),
        ("c-%J", "c-338"),
        ("d-%j-%6j", "d-338-000338"),
        ("e-%N-%5N", "e-vm-vm"),
        ("f-%n-%3n", "f-0-000"),
        ("g-%s-%3s", "g-batch-batch"),
        ("h-%t-%4t", "h-0-0000"),
        ("i-%u-%4u", "i-root-root"),
        ("k-%x-%4x", "k-nm-nm"),
        ("l-%z-%4z", "l-%z-4z"),
        ("m-%", "m-%"),
        ("n-%5", "n-5"),
        ("o-%20j", "o-0000000338"),
        ("p-\\%j", "p-%j"),
        ("q-\\\\%j", "q-\\%j"),
        ("r-%010j", "r-0000000338"),
        ("s-%j%", "s-338%"),
        ("t-%4%", "t-4%"),
        ("v-%-4j", "v-%-4j"),
        ("x-%4J", "x-0338"),
    ],
)
def test_names_a_batch_jobs_file(pattern: str, name: str) -> None:
    assert expand_filename(pattern, BATCH) == name


def test_names_an_array_tasks_file() -> None:
    assert expand_filename("%A-%a-%4a-%b-%j-%4A", ARRAY) == "359-13-0013-3-361-0359"
    assert expand_filename(default_output(is_array=True), ARRAY) == "slurm-359_13.out"
    assert expand_filename(default_output(is_array=False), BATCH) == "slurm-338.out"


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("job%J.out", "job128.0.out"),
        ("job%4j.out", "job0128.out"),
        ("job%j-%2t.out", "job128-03.out"),
        ("%u/%x.%s.%N.%n", "ann/train.0.n2.1"),
    ],
)
def test_names_a_steps_file(pattern: str, name: str) -> None:
    assert expand_filename(pattern, STEP) == name


def test_says_which_specifiers_a_pattern_uses() -> None:
    assert specifiers("%j-%4t-%%N") == {"j", "t"}
    assert specifiers("\\%t") == frozenset()


@given(st.text() | st.text(alphabet="%0123456789jJtaAb\\"))
def test_any_pattern_names_a_file(pattern: str) -> None:
    name = expand_filename(pattern, STEP)
    if "%" not in pattern and "\\" not in pattern:
        assert name == pattern
