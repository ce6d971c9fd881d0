"""What the variables of a task become in a box: the image's win over the submitter's, as under Pyxis. Pure.

Used by `boxing`. What tells a task of its job, its step and its devices stays as the job has it, and so do the
variables that `--container-env` names.
Invariant: a variable that neither side has is not made up, but for HOME and PATH.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

_OF_THE_JOB = ("SLURM_", "BIREME_", "PMI_", "PMIX_")
_OF_THE_TASK = frozenset(
    ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "GPU_DEVICE_ORDINAL", "TMPDIR")
)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PYTORCH, _RANKS = "PYTORCH_VERSION", {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID"}


def boxed_environment(
    own: Mapping[str, str], images: Mapping[str, str], kept: Collection[str], commands: str, home: str = ""
) -> dict[str, str]:
    """`kept`: names of `--container-env`; `commands`: the folder of srun and its kin; `home`: another HOME, or none."""
    merged = dict(own)
    for name, value in images.items():
        if not name or "=" in name:  # no program can be given such a variable
            continue
        if name not in kept and not (name in own and (name.startswith(_OF_THE_JOB) or name in _OF_THE_TASK)):
            merged[name] = value
    path = merged["PATH"] if "PATH" in kept else images.get("PATH", _PATH)
    merged["PATH"] = path if path.startswith(f"{commands}:") else f"{commands}:{path}"
    if home and "HOME" not in kept:
        merged["HOME"] = home
    if _PYTORCH in images:
        merged |= {name: own[of] for name, of in _RANKS.items() if of in own}
    return merged
