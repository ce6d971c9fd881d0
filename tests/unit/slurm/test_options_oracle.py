"""Our words against Slurm's own: the same bad and good command lines given to the installed sbatch and srun.

Slurm judges its options before it looks for a controller, so no cluster is needed, only its programs.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bireme.core.model.jobs import Owner
from bireme.slurm.options.batch import read_batch
from bireme.slurm.options.context import SubmitContext
from bireme.slurm.options.errors import OptionError
from bireme.slurm.options.interactive import read_run

pytestmark = pytest.mark.skipif(shutil.which("sbatch") is None, reason="Slurm is not installed")

CONF = """\
ClusterName=oracle
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=1
SelectType=select/cons_tres
GresTypes=gpu
TaskPlugin=task/affinity
NodeName=n[1-4] CPUs=8 RealMemory=1000 Gres=gpu:2
PartitionName=p Nodes=ALL Default=YES
MessageTimeout=2
"""
CONTEXT = SubmitContext(
    owner=Owner(uid=0, gid=0, user="root"), cwd="/", now=1.8e9, utc_offset=lambda at: 0.0, environment={}
)


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    path.write_text(CONF)
    return path


def slurm(conf: Path, *argv: str, variables: dict[str, str] | None = None) -> tuple[int, str]:
    environment = {"SLURM_CONF": str(conf), "PATH": "/usr/bin:/bin", **(variables or {})}
    done = subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr.strip()


BAD_SBATCH = """
--foo|--foo=1|-Z|-N|--nodes|--hold=1|--mem=abc|--mem=1.5G|--mem=-1|--mem-per-cpu=x|--nodes=a|--nodes=3-1|--nodes=1-
-n a|-n 0|-n 4x|-c 0|-c x|-t abc|-t|--time-min=x|--begin=foo|--deadline=foo|--exclusive=foo|--signal=foo|--mail-type=foo
--open-mode=foo|--kill-on-invalid-dep=foo|--gpu-bind=x|--hint=x|--distribution=x|--distribution=plane|--switches=x
--ntasks-per-node=x|--wait-all-nodes=3|--tmp=x|--mincpus=x|--profile=x|--gres-flags=x|--core-spec=x
--threads-per-core=x|-B x|-B 2:x|--get-user-env=x|--delay-boot=x|--no-kill=x|--cpus-per-gpu=0
--mem=1 --mem-per-cpu=2|--gres=gpu:|--gres=gpu=2|--gres=gpu:x:y:z
--gpus-per-task=1|-n2 --gpus-per-task=1 --gpus=8|--gpus=3 --gpus-per-node=2|-N1 --gpus=4 --gpus-per-node=2
--gpus-per-socket=1|--mem-per-gpu=1G|-N4 --gpus=2|--gpus=3 --gpus-per-task=2|--cpus-per-gpu=2 -c2 --gpus=1
--gres=gpu:a100:1 --gpus-per-node=2|--ntasks-per-gpu=1|-w n[1-3] -N2
--ntasks-per-gpu=1 --ntasks-per-node=2|--ntasks-per-gpu=1 --gpus-per-task=1
""".replace("\n", "|")


@pytest.mark.parametrize("line", [line for line in BAD_SBATCH.split("|") if line])
def test_sbatch_refuses_in_the_same_words(conf: Path, line: str) -> None:
    argv = [*line.split(), "--wrap=x"] if not line.endswith(("-N", "-t", "--nodes")) else line.split()
    with pytest.raises(OptionError) as ours:
        read_batch(argv, b"", CONTEXT)
    said = [row for row in ours.value.text_for("sbatch").splitlines() if " is none of minutes, " not in row]
    assert (ours.value.exit_code, "\n".join(said)) == slurm(conf, "sbatch", *argv)  # we name the right forms, too


SCRIPTS = {
    "empty": b"",
    "blank": b" \n\t\n",
    "no interpreter": b"echo\n",
    "dos": b"#!/bin/sh\r\n",
    "nul": b"#!/bin/sh\necho \0\n",
    "unknown option": b"#!/bin/sh\n#SBATCH --foo\n",
    "loose word": b"#!/bin/sh\n#SBATCH -N2 foo\n",
    "open quote": b'#!/bin/sh\n#SBATCH -J "abc\n',
    "open quote in a word": b"#!/bin/sh\n#SBATCH --comment='a\n",
    "colon": b"#!/bin/sh\n#SBATCH -N2 : -N3\n",
    "escaped space": b"#!/bin/sh\n#SBATCH --comment=a\\ b\n",
    "glued": b"#!/bin/sh\n#SBATCHX\n",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_refused_in_the_same_words(conf: Path, tmp_path: Path, name: str) -> None:
    script = tmp_path / "job.sh"
    script.write_bytes(SCRIPTS[name])
    with pytest.raises(OptionError) as ours:
        read_batch([str(script)], SCRIPTS[name], CONTEXT)
    assert (ours.value.exit_code, ours.value.text_for("sbatch")) == slurm(conf, "sbatch", str(script))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--foo x",
        "--cpu-bind=foo x",
        "-Wx x",
        "-rx x",
        "--jobid=x x",
        "-T0 x",
        "--accel-bind=x x",
        "--signal=B:USR1 x",
        "--mem-bind=foo x",
        "-Ix x",
        "--send-libs=maybe x",
    ],
)
def test_srun_refuses_in_the_same_words(conf: Path, line: str) -> None:
    with pytest.raises(OptionError) as ours:
        read_run(line.split(), CONTEXT)
    assert (ours.value.exit_code, ours.value.text_for("srun")) == slurm(conf, "srun", *line.split())


DIRECTIVES = [
    '-J "two words" # note',
    "--comment=a#b -N2",
    "--comment=a'b c'd",
    '--comment="a\\"b"',
    "--comment=a\\#b",
    "-N2-4 -n8 --ntasks-per-node=4",
    "--tasks=3",
    "--part=x --acco=y",
    "-N8 -n4",
    "--mem=1025K",
    "-t 1:30",
    "-t 2-3:04",
    "--nice -H",
    "--switches=2@10",
    "--signal=B:10@90",
    "-m block:cyclic",
    "--hint=nomultithread",
    "--exclusive --requeue",
]


def _seen_by_slurm(conf: Path, script: Path) -> dict[str, str]:
    """The `defined options` that sbatch -v prints. The bad --gres ends it before it looks for a controller."""
    _, text = slurm(conf, "sbatch", "-v", "--gres=gpu:", str(script))
    seen = {match[1]: match[2] for match in re.finditer(r"^sbatch: ([a-z-]+?) +: (.*)$", text, re.MULTILINE)}
    return {name: value for name, value in seen.items() if name not in ("verbose", "gres")}


@pytest.mark.parametrize("line", DIRECTIVES)
def test_directives_set_the_same_options(conf: Path, tmp_path: Path, line: str) -> None:
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\n#SBATCH {line}\n")
    seen = _seen_by_slurm(conf, script)
    options = read_batch([str(script)], script.read_bytes(), CONTEXT).options
    assert set(options.settings) == set(seen)
    for name in ("job-name", "comment", "partition", "account"):
        assert options.text(name) == seen.get(name, "")
    for name in ("ntasks", "ntasks-per-node", "cpus-per-task", "nice"):
        assert options.number(name) == (int(seen[name]) if name in seen else None)
