"""Values of options: what they mean, and Slurm's words for what they do not."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.core.model.resources import GresRequest
from bireme.slurm.options.catalogue.all_options import OPTIONS, TABLES
from bireme.slurm.options.catalogue.table import Arity, Command, Option
from bireme.slurm.options.errors import OptionError
from bireme.slurm.options.getopt import Given, read_options
from bireme.slurm.options.values import Moment, NodeCount, NodeShape, Switches, TresPerTask, parse_value

NOW = 1_800_000_000.0


def value(*words: str, command: Command = Command.SBATCH) -> object:
    options, _ = read_options(TABLES[command], words)
    return parse_value(options[0], Moment(command, NOW, lambda at: 0.0))


def refusal(*words: str, command: Command = Command.SBATCH) -> tuple[int, str]:
    with pytest.raises(OptionError) as caught:
        value(*words, command=command)
    return caught.value.exit_code, caught.value.text_for(command)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--hold", True),
        ("--no-requeue", False),
        ("-N2-4", NodeCount(2, 4)),
        ("-N3", NodeCount(3, 3)),
        ("-N-3", NodeCount(1, 3)),
        ("-N1k", NodeCount(1024, 1024)),
        ("-n +4", 4),
        ("--mem=4G", 4096),
        ("--mem=1025K", 2),
        ("--mem=0", 0),
        ("-t30", 1800),
        ("-t1:30", 120),
        ("-tUNLIMITED", None),
        ("-t0", None),
        ("--begin=now+1hour", NOW + 3600),
        ("--gres=gpu:h100:8", (GresRequest("gpu", "h100", 8),)),
        ("--gres=none", ()),
        ("--gpus=a100:2", (GresRequest("gpu", "a100", 2),)),
        ("-B2:*:1", NodeShape(2, None, 1)),
        ("--switches=2@10", Switches(2, 600)),
        ("--nice", 100),
        ("--nice=-5", -5),
        ("--priority=TOP", 4294967293),
        ("--priority=4294967293", 4294967293),
        ("--exclusive", "exclusive"),
        ("--open-mode=append", True),
        ("--mail-type=END,FAIL", ("END", "FAIL")),
        ("--mail-type=NONE", ()),
        ("--wait-all-nodes=1", True),
        ("--kill-on-invalid-dep=no", False),
        ("--no-kill=off", False),
        ("--tres-per-task=cpu=4,gres/gpu:a100=2", TresPerTask(4, "gpu:a100:2")),
        ("--exclude=n[1-2]", ("n1", "n2")),
        ("--get-user-env=10L", "10L"),
    ],
)
def test_meaning(word: str, expected: object) -> None:
    assert value(*word.split(" ")) == expected


@pytest.mark.parametrize(
    ("word", "code", "text"),
    [
        ("--mem=abc", 255, "error: Invalid --mem specification"),
        ("--requeue=soon", 255, "error: Invalid --requeue specification"),
        ("--mem=1.5G", 255, "error: Invalid --mem specification"),
        ("--mem-per-gpu=abc", 255, "error: Invalid --mem-per-gpu specification"),
        ("-na", 1, 'error: Invalid numeric value "a" for --ntasks.'),
        ("-n0", 1, 'error: Invalid numeric value "0" for --ntasks.'),
        ("--gpus-per-node=x:y", 1, "error: Invalid generic resource (gres) specification"),
        ("-Na", 255, 'error: "a" is not a valid node count'),
        ("-N3-1", 255, "error: Maximum node count 1 is less than minimum node count 3"),
        ("--hint=x", 1, 'error: unrecognized --hint argument "x", see --hint=help'),
        ("--gpu-bind=x", 255, "error: Invalid --gpu-bind argument: gpu:x"),
        ("--profile=x", 255, "error: invalid --profile=x option"),
        ("-Bx", 1, 'error: Invalid numeric value "x" for first arg of -B.'),
        ("--switches=x", 1, 'error: Invalid numeric value "x" for --switches.'),
        ("--array=5-1", 1, "error: Batch job submission failed: Invalid job array specification"),
        ("-dfoo:1", 1, "error: Batch job submission failed: Job dependency problem"),
        ("-wn[1", 1, "error: Batch job submission failed: Invalid node name specified"),
        ("--constraint=a&", 1, "error: Batch job submission failed: Invalid feature specification"),
    ],
)
def test_refusals(word: str, code: int, text: str) -> None:
    assert refusal(word) == (code, f"sbatch: {text}")


def test_a_bad_time_is_named_first() -> None:
    assert refusal("--begin=foo")[1].splitlines() == [
        "Invalid time specification (pos=0): foo",
        "sbatch: error: Invalid --begin specification",
    ]


def test_only_a_batch_script_can_be_warned_alone() -> None:
    assert value("--signal=B:USR1@120")
    assert refusal("--signal=B:USR1", command=Command.SRUN) == (255, "srun: error: Invalid --signal specification")


def test_values_that_ask_for_a_text() -> None:
    assert refusal("--mpi=list", command=Command.SRUN) == (0, "MPI plugin types are...\n\tnone\n\tpmi2")
    code, text = refusal("--hint=help")
    assert code == 1
    assert "memory_bound" in text


@given(st.sampled_from(OPTIONS), st.one_of(st.none(), st.text(max_size=20)))
def test_any_value_is_read_or_refused(option: Option, text: str | None) -> None:
    if text is None and option.arity is Arity.REQUIRED:
        text = ""
    command = sorted(option.commands)[0]
    with contextlib.suppress(OptionError):
        parse_value(Given(option, text), Moment(command, NOW, lambda at: 0.0))
