"""slurm.conf as a real Slurm reads it: what it refuses we refuse, what it takes we take."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.slurm_cluster import installed, missing

from bireme.slurm.conf.diagnostics import ConfigurationError
from bireme.slurm.conf.loading import parse_configuration

pytestmark = pytest.mark.skipif(
    bool(missing(accounting=False)) or bool(installed().chroot), reason="no Slurm whose commands read files out here"
)

HEAD = "ClusterName=c\nSlurmctldHost=localhost\nSlurmctldPort=1\nMessageTimeout=2\nAuthType=auth/munge\n"
NODES = "NodeName=n1 CPUs=4\nPartitionName=p Nodes=n1\n"

REFUSED = {
    "a misspelt setting": HEAD + NODES + "MaxTimee=3\n",
    "a misspelt key of a node": HEAD + "NodeName=n1 CPUs=4 Grs=gpu:1\nPartitionName=p Nodes=n1\n",
    "a misspelt key of a partition": HEAD + "NodeName=n1\nPartitionName = p Nodes = n1 MaxTimee = 3\n",
    "a key of a partition as a setting": HEAD + NODES + "MaxTime=3\n",
    "a word": HEAD + NODES + "hello world\n",
    "a word at the end of a line": HEAD + "NodeName=n1\nPartitionName=p Nodes=n1 foo\n",
    "a key alone": HEAD + NODES + "KillWait\n",
    "no value": HEAD + NODES + "KillWait=\n",
    "no number": HEAD + NODES + "KillWait=x\n",
    "a number below zero": HEAD + NODES + "KillWait=-3\n",
    "two settings on a line": HEAD + NODES + "KillWait=3 MinJobAge=10\n",
    "a quote that does not end": HEAD + NODES + 'MailProg="/bin/a b\n',
    "neither yes nor no": HEAD + "NodeName=n1\nPartitionName=p Nodes=n1 Default=maybe\n",
}
TAKEN = {
    "spaces around the equals sign": HEAD + "NodeName = n1 CPUs = 4\nPartitionName =p Nodes= n1\nKillWait  =  3\n",
    "values with equals signs": HEAD + NODES + "SchedulerParameters = bf_interval=7,bf_window=60\n",
    "quotes": HEAD + 'NodeName=n1 Reason="two words" State=DOWN\nPartitionName="p" Nodes=n1\n',
    "any case": HEAD + "nodename=n1 cpus=4\nPARTITIONNAME=p NODES=n1\nkillWAIT=3\n",
    "comments and continued lines": HEAD + "NodeName=n1 \\\n  CPUs=4 # four\n# KillWait=x\nPartitionName=p Nodes=n1\n",
    "a setting twice": HEAD + NODES + "KillWait=3\nKillWait=4\n",
    "an included file": HEAD + "Include nodes.conf\n",
}


def slurm_refuses(folder: Path, text: str) -> bool:
    """A command reads the file before it looks for slurmctld, which is not there (nothing listens on port 1)."""
    (folder / "slurm.conf").write_text(text)
    (folder / "nodes.conf").write_text(NODES)
    env = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": installed().path}
    said = subprocess.run([installed().program("sinfo")], env=env, capture_output=True, text=True, timeout=60).stderr
    assert "Unable to process configuration file" in said or "Unable to contact" in said, said
    return "Unable to process configuration file" in said


def bireme_refuses(text: str) -> bool:
    try:
        parse_configuration({"slurm.conf": text, "nodes.conf": NODES})
    except ConfigurationError:
        return True
    return False


@pytest.mark.parametrize("what", REFUSED)
def test_refused_by_both(what: str, tmp_path: Path) -> None:
    assert (slurm_refuses(tmp_path, REFUSED[what]), bireme_refuses(REFUSED[what])) == (True, True)


@pytest.mark.parametrize("what", TAKEN)
def test_taken_by_both(what: str, tmp_path: Path) -> None:
    assert (slurm_refuses(tmp_path, TAKEN[what]), bireme_refuses(TAKEN[what])) == (False, False)
