"""docs/kubernetes.md, followed to the letter: from nothing to a running gang job."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.kubernetes_cluster.cluster import Kubernetes, missing
from tests.support.cluster import ROOT
from tests.support.kubernetes import BASH, IMAGE

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")
MADE_HERE = {"REGISTRY/bireme": IMAGE, "REGISTRY/train": BASH}


def test_five_commands_run_a_gang(kubelets: Kubernetes, tmp_path: Path) -> None:
    """The first two, which install and build, are done by those who run these tests, without pip and podman."""
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    block = re.search(r"## From nothing to a running gang job\n.*?```\n(.*?)```", page, re.DOTALL)
    assert block is not None
    install, build, *commands = block.group(1).splitlines()
    assert install.startswith("pip install")
    assert build.startswith("podman build")
    assert len(commands) == 3
    typed = "\n".join(commands)
    for written, here in MADE_HERE.items():
        typed = typed.replace(written, here)
    (tmp_path / "train.sh").write_text("#!/bin/bash\nsrun sh -c 'echo $SLURM_PROCID of $SLURM_NTASKS on $(hostname)'\n")
    home = tmp_path / "home"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BIREME_", "KUBE", "SLURM"))}
    variables = {
        **kept,
        "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}",
        "BIREME_HOME": str(home),
        "BIREME_KUBERNETES_PULL_POLICY": "Never",
        "KUBECONFIG": str(kubelets.kubeconfig),
    }
    script = f"set -e\ntrap 'bireme down --end-jobs --quiet' EXIT\n{typed}\nbireme logs --follow 1\n"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Submitted batch job 1" in done.stdout
    assert sorted((tmp_path / "slurm-1.out").read_text().splitlines()) == ["0 of 2 on node1", "1 of 2 on node2"]
