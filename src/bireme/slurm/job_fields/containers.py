"""The container that a job or step runs in.

Rows of the table and options beside them, in the order of `--help`; `row` explains a row,
`options/catalogue/rows` an option.
"""

from __future__ import annotations

from bireme.slurm.job_fields.row import (
    Form,
    JobField,
    Row,
    Sacct,
    Squeue,
    own,
)
from bireme.slurm.options.catalogue.rows import ALL, option
from bireme.slurm.options.catalogue.table import Command, Kind, Option

CONTAINERS = "Containers"

_ON_HOST = "the embedded engine refuses jobs and steps for an image"
_NOT_PASSED_ON = "it is not passed on to Slurm"
_ITS_POD = "a job runs in a pod as the engine makes it; docs/kubernetes.md says what can be set"


def _elsewhere(job: str, step: str, slurm: str = _NOT_PASSED_ON) -> dict[str, str]:
    """Why an option is not applied to jobs and to steps in pods, and to those of Slurm; empty: it is."""
    return {"kubernetes": job, "kubernetes step": step, "slurm": slurm, "slurm step": slurm}


_IN_PODS = _elsewhere(_ITS_POD, _ITS_POD)
_IMAGE = _elsewhere("", "steps run in the image of their job", "")
_BUNDLE = _elsewhere("", "", "")
_MOUNTS = _elsewhere(*2 * ("volumes of jobs are a setting (kubernetes.volumes)",), "")
_FOLDER = _elsewhere(*2 * ("use --chdir",), "")


def _pyxis(signature: str, kind: Kind, summary: str, elsewhere: dict[str, str] = _IN_PODS) -> Option:
    return option("", signature, ALL, kind, CONTAINERS, summary, ignored=_ON_HOST, elsewhere=elsewhere)


# A row is easier to compare with its neighbours on few lines.
# fmt: off
CONTAINER_ROWS: tuple[Row, ...] = (
    JobField("container_bundle", Form.TEXT,
        option("", "container=PATH", ALL, Kind.TEXT, CONTAINERS, "OCI bundle",
               variables={Command.SBATCH: ("SBATCH_CONTAINER",), Command.SRUN: ("SRUN_CONTAINER",),
               Command.SALLOC: ("SALLOC_CONTAINER",)},
               ignored=_ON_HOST, elsewhere=_BUNDLE),
        record="container_image", says="container image, or the folder of an OCI bundle",
        squeue=Squeue("container", "CONTAINER"), sacct=Sacct("Container", 19, on_steps=True), json="container",
        accounting="container", own=own("record")),
    option("", "container-id=ID", ALL, Kind.TEXT, CONTAINERS, "id of the OCI container",
           variables={Command.SBATCH: ("SBATCH_CONTAINER_ID",), Command.SRUN: ("SRUN_CONTAINER_ID",),
                      Command.SALLOC: ("SALLOC_CONTAINER_ID",)},
           ignored=_ON_HOST, elsewhere=_IN_PODS),
    JobField("container_image", Form.TEXT,
        _pyxis("container-image=IMAGE", Kind.TEXT, "image to run in (Pyxis)", _IMAGE),
        hidden="shown as the container"),
    JobField("container_mounts", Form.TEXT,
        _pyxis("container-mounts=SRC:DST[:FLAGS],...", Kind.TEXT, "mounts (Pyxis)", _MOUNTS),
        hidden="no command of Slurm's shows it"),
    JobField("container_workdir", Form.TEXT,
        _pyxis("container-workdir=PATH", Kind.TEXT, "working directory (Pyxis)", _FOLDER),
        hidden="no command of Slurm's shows it"),
    _pyxis("container-name=NAME", Kind.TEXT, "keep under a name (Pyxis)"),
    _pyxis("container-save=PATH", Kind.TEXT, "save as a file (Pyxis)"),
    _pyxis("container-mount-home", Kind.FLAG, "mount the home folder (Pyxis)"),
    _pyxis("no-container-mount-home", Kind.FLAG, "do not mount it (Pyxis)"),
    _pyxis("container-remap-root", Kind.FLAG, "look like root inside (Pyxis)"),
    _pyxis("no-container-remap-root", Kind.FLAG, "be oneself inside (Pyxis)"),
    _pyxis("container-entrypoint", Kind.FLAG, "run the image's entry point (Pyxis)"),
    _pyxis("no-container-entrypoint", Kind.FLAG, "do not run it (Pyxis)"),
    _pyxis("container-entrypoint-log", Kind.FLAG, "show the entry point's output (Pyxis)"),
    _pyxis("container-writable", Kind.FLAG, "writable image (Pyxis)"),
    _pyxis("container-readonly", Kind.FLAG, "read-only image (Pyxis)"),
    _pyxis("container-env=NAME,...", Kind.TEXT, "variables that win over the image's (Pyxis)"),
)
