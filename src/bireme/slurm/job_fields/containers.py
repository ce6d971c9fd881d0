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

_NO_IDS = "containers have no ids: --container-name shares one among the steps of a job"
_NOT_PASSED_ON = "it is not passed on to Slurm"
_ITS_POD = "a job runs in a pod as the engine makes it; docs/kubernetes.md says what can be set"


def _elsewhere(job: str, step: str, slurm: str = "") -> dict[str, str]:
    """Why an option is not applied to jobs and to steps in pods, and to those of Slurm; empty: it is."""
    return {"kubernetes": job, "kubernetes step": step, "slurm": slurm, "slurm step": slurm}


_EVERYWHERE = _elsewhere("", "")
_OF_THE_POD = _elsewhere("", "steps run in the container of their job")
_IN_PODS = _elsewhere(_ITS_POD, _ITS_POD)


def _pyxis(
    signature: str, kind: Kind, summary: str, elsewhere: dict[str, str] = _IN_PODS, alias_of: str = ""
) -> Option:
    """With the variable that Pyxis reads for it, in all three commands."""
    name = signature.partition("=")[0]
    variable = f"PYXIS_{name.upper().replace('-', '_')}"
    variables: dict[Command, tuple[str, ...]] = {} if name.startswith("no-") else dict.fromkeys(ALL, (variable,))
    return option("", signature, ALL, kind, CONTAINERS, summary, elsewhere=elsewhere, variables=variables,
                  alias_of=alias_of)  # fmt: skip


_UNSHOWN = "no command of Slurm's shows it"

# A row is easier to compare with its neighbours on few lines.
# fmt: off
CONTAINER_ROWS: tuple[Row, ...] = (
    JobField("container_bundle", Form.TEXT,
        option("", "container=PATH", ALL, Kind.TEXT, CONTAINERS, "OCI bundle",
               variables={Command.SBATCH: ("SBATCH_CONTAINER",), Command.SRUN: ("SRUN_CONTAINER",),
               Command.SALLOC: ("SALLOC_CONTAINER",)}, elsewhere=_EVERYWHERE),
        record="container_image", says="container image, or the folder of an OCI bundle",
        squeue=Squeue("container", "CONTAINER"), sacct=Sacct("Container", 19, on_steps=True), json="container",
        accounting="container", own=own("record")),
    option("", "container-id=ID", ALL, Kind.TEXT, CONTAINERS, "id of the OCI container",
           variables={Command.SBATCH: ("SBATCH_CONTAINER_ID",), Command.SRUN: ("SRUN_CONTAINER_ID",),
                      Command.SALLOC: ("SALLOC_CONTAINER_ID",)},
           ignored=_NO_IDS, elsewhere={**_IN_PODS, **dict.fromkeys(("slurm", "slurm step"), _NOT_PASSED_ON)}),
    JobField("container_image", Form.TEXT,
        _pyxis("container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH", Kind.CONTAINER, "image to run in (Pyxis)",
               _OF_THE_POD), hidden="shown as the container"),
    JobField("container_mounts", Form.TEXT,
        _pyxis("container-mounts=SRC:DST[:FLAGS],...", Kind.CONTAINER, "mounts (Pyxis)", _OF_THE_POD), hidden=_UNSHOWN),
    JobField("container_workdir", Form.TEXT,
        _pyxis("container-workdir=PATH", Kind.CONTAINER, "working directory (Pyxis)", _OF_THE_POD), hidden=_UNSHOWN),
    JobField("container_name", Form.TEXT,
        _pyxis("container-name=NAME[:FLAG]", Kind.CONTAINER, "share it under a name (Pyxis)"), hidden=_UNSHOWN),
    JobField("container_save", Form.TEXT,
        _pyxis("container-save=PATH", Kind.CONTAINER, "save it as a .sqsh file (Pyxis)"), hidden=_UNSHOWN),
    JobField("container_mount_home", Form.CHOICE,
        _pyxis("container-mount-home", Kind.EITHER, "mount the home folder (Pyxis)"), hidden=_UNSHOWN,
        own=own("passed")),
    _pyxis("no-container-mount-home", Kind.EITHER, "do not mount it (Pyxis)", alias_of="container-mount-home"),
    JobField("container_remap_root", Form.CHOICE,
        _pyxis("container-remap-root", Kind.EITHER, "look like root inside (Pyxis)"), hidden=_UNSHOWN,
        own=own("passed")),
    _pyxis("no-container-remap-root", Kind.EITHER, "be oneself inside (Pyxis)", alias_of="container-remap-root"),
    JobField("container_entrypoint", Form.CHOICE,
        _pyxis("container-entrypoint", Kind.EITHER, "run the image's entry point (Pyxis)", _OF_THE_POD),
        hidden=_UNSHOWN, own=own("passed")),
    _pyxis("no-container-entrypoint", Kind.EITHER, "do not run it (Pyxis)", _OF_THE_POD, "container-entrypoint"),
    option("", "container-entrypoint-log", ALL, Kind.FLAG, CONTAINERS, "show its output, as is always done (Pyxis)",
           variables=dict.fromkeys(ALL, ("PYXIS_CONTAINER_ENTRYPOINT_LOG",)), elsewhere=_IN_PODS),
    JobField("container_writable", Form.CHOICE,
        _pyxis("container-writable", Kind.EITHER, "writable image (Pyxis)"), hidden=_UNSHOWN, own=own("passed")),
    _pyxis("container-readonly", Kind.EITHER, "read-only image (Pyxis)", alias_of="container-writable"),
    JobField("container_env", Form.TEXT,
        _pyxis("container-env=NAME[,NAME...]", Kind.CONTAINER, "variables that win over the image's (Pyxis)"),
        hidden=_UNSHOWN),
)
