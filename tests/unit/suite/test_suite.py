"""The runner of the suite itself (tests/suite.py): what is red, and what CI calls flaky."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import suite
from tests.support.beside import LONGEST, SHARING, longest_first

ALWAYS = "def test_always():\n    assert 'a reason to fall' == ''\n"
ONCE = """
from pathlib import Path

def test_once():
    met = Path(__file__).with_suffix('.met')
    first = not met.exists()
    met.touch()
    assert not first, 'only the first time'
"""
FINE = "def test_fine():\n    pass\n"
BROKEN = "import no_such_module_at_all\n"

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """`run_suite("--again", test_it=SOURCE)`: the suite, made of these modules alone; its exit code and output."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # these modules need none: half of its start
    monkeypatch.setenv("PYTHONPATH", str(Path(suite.__file__).parent.parent))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, **modules: str) -> tuple[int, str]:
        for name, source in modules.items():
            (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.setattr(suite, "PARTS", (("--rootdir=.", "."),))
        monkeypatch.setattr(suite, "SLOWEST", 1)
        code = suite.main(list(arguments))
        return code, capfd.readouterr().out

    return run


def test_what_falls_once_is_flaky_in_ci_and_shown_with_its_first_failure(run_suite: Run) -> None:
    code, output = run_suite("--again", test_it=ONCE, test_fine=FINE)
    assert code == 0
    flaky = output.partition("slowest of")[2]
    assert "1 FLAKY:\n  FLAKY test_it.py::test_once" in flaky
    assert "only the first time" in flaky
    assert "test_fine" not in flaky.partition("FLAKY")[2]


def test_what_falls_twice_is_red(run_suite: Run) -> None:
    code, output = run_suite("--again", test_it=ALWAYS, test_other=ONCE)
    assert code == 1
    assert "1 FAILED:\n  FAILED test_it.py::test_always" in output
    assert "1 FLAKY:\n  FLAKY test_other.py::test_once" in output


def test_on_a_developers_machine_what_falls_once_is_red(run_suite: Run) -> None:
    code, output = run_suite(test_it=ONCE)
    assert code == 1
    assert "1 FAILED:" in output


def test_a_module_that_cannot_be_read_is_red_and_named(run_suite: Run) -> None:
    code, output = run_suite("--again", test_broken=BROKEN, test_fine=FINE)
    assert code == 1
    assert "test_broken.py" in output.partition("FAILED:")[2]


def test_no_test_at_all_is_red(run_suite: Run) -> None:
    code, output = run_suite("--again")
    assert code == 1
    assert "exit code 5" in output


def test_many_that_fall_together_are_not_chance(run_suite: Run) -> None:
    many = "import pytest\n@pytest.mark.parametrize('n', range(13))\n" + ALWAYS.replace("()", "(n)")
    code, output = run_suite("--again", test_it=many)
    assert code == 1
    assert "13 FAILED:" in output
    assert "once more by itself" not in output


def test_all_pass(run_suite: Run) -> None:
    code, output = run_suite("--again", test_fine=FINE)
    assert code == 0
    assert "FLAKY" not in output
    assert "FAILED" not in output


def test_what_takes_longest_begins_first_and_what_shares_a_cluster_stays_together() -> None:
    collected = [
        "tests/clients/test_jax.py",
        "tests/integration/test_proctrack.py",
        "tests/kubernetes/test_api.py",
        "tests/kubernetes/test_steps.py",
        "tests/unit/test_plans.py",
    ]
    assert longest_first(collected) == [
        "tests/kubernetes",
        "tests/integration/test_proctrack.py",
        "tests/clients/test_jax.py",
        "tests/unit/test_plans.py",
    ]


def test_what_is_named_for_its_length_or_its_cluster_is_there() -> None:
    root = Path(suite.__file__).parent.parent
    assert [name for name in (*LONGEST, *SHARING) if not (root / name).exists()] == []


def test_what_took_longest_together_is_told(run_suite: Run) -> None:
    _, output = run_suite(test_fine=FINE, test_other=FINE)
    listed = output.partition("with one worker")[2]
    assert "s  test_fine.py\n" in listed
    assert "s  test_other.py\n" in listed


def test_processes_that_tests_start_keep_what_python_compiles() -> None:
    said = subprocess.run([sys.executable, "-c", "import sys; print(sys.dont_write_bytecode)"], capture_output=True)
    assert said.stdout == b"False\n"
