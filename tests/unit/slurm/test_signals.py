"""Signals. Literal expectations come from Slurm 22.05 (sbatch --signal)."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.core.model.jobs import WarningSignal
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.signals import format_warning_signal, parse_signal, parse_warning_signal, signal_name


@pytest.mark.parametrize("text", ["SIGUSR1", "USR1", "10", "usr1", "sigusr1", " USR1 "])
def test_names_and_numbers_mean_the_same(text: str) -> None:
    assert parse_signal(text) == 10


@pytest.mark.parametrize("text", ["", "FOO", "0", "-1", "65", "RTMIN", "KILL9", "9x", "SIG"])
def test_refuses_unknown_signals(text: str) -> None:
    with pytest.raises(SlurmSyntaxError, match=r"^Unknown job signal"):
        parse_signal(text)


def test_a_signal_without_name_prints_as_its_number() -> None:
    assert [signal_name(number) for number in (9, 11, 15, 24, 64)] == ["KILL", "11", "TERM", "XCPU", "64"]


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("10", WarningSignal(10)),
        ("USR1@", WarningSignal(10)),
        ("USR1@65535", WarningSignal(10, 65535)),
        ("KILL@0", WarningSignal(9, 0)),
        ("B:USR1@120", WarningSignal(10, 120, batch_only=True)),
        ("b:USR1", WarningSignal(10, batch_only=True)),
        ("R:USR1", WarningSignal(10, with_reservation=True)),
        ("RB:USR1@5", WarningSignal(10, 5, True, True)),
        ("BR:USR1@5", WarningSignal(10, 5, True, True)),
    ],
)
def test_reads_the_warning_signal(text: str, warning: WarningSignal) -> None:
    assert parse_warning_signal(text) == warning
    assert parse_warning_signal(format_warning_signal(warning)) == warning


@pytest.mark.parametrize(
    "text", ["", "FOO", "@60", "B:", "USR1@x", "USR1@60s", "USR1@65536", "USR1@-1", "0@1", "R:B:USR1", "SIGKILL9"]
)
def test_refuses_what_sbatch_refuses(text: str) -> None:
    with pytest.raises(SlurmSyntaxError, match=r"^Invalid --signal specification"):
        parse_warning_signal(text)


@given(st.integers(1, 64))
def test_a_printed_signal_reads_back(number: int) -> None:
    assert parse_signal(signal_name(number)) == number


@given(st.text() | st.text(alphabet="RB:USR12@0123456789"))
def test_any_text_is_a_warning_or_a_syntax_error(text: str) -> None:
    with contextlib.suppress(SlurmSyntaxError):
        assert 1 <= parse_warning_signal(text).number <= 64
