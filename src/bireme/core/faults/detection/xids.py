"""What an Xid says of the GPU that it came from: three classes, by NVIDIA's published catalogue ("XID Errors").

Application: a program did it, or the driver ended its work after another error; the GPU is well. GPU: it has to be
reset or replaced, and what runs on it fails or comes out wrong. Node: links, bus or switch; its neighbours are in it
too. The number alone does not say everything: `judge` says what is to be believed of one event. Delay: none.

Invariant: a number that the catalogue does not call fatal, and that is of no class here, makes no finding.
"""

from __future__ import annotations

from enum import StrEnum

from bireme.core.faults.detection.told import Told
from bireme.core.model.finding.findings import Gravity, Place, Quote, Trouble

DETECTOR = "xid"


class XidClass(StrEnum):
    APPLICATION = "application"
    GPU = "gpu"
    MEMORY = "memory"
    """Of a GPU, by its memory: reset, and replaced where rows cannot be remapped any more."""
    NODE = "node"
    NOTICE = "notice"
    """Worth writing down: corrected errors, a row that waits for its replacement."""
    NOTHING = "nothing"
    """Said with or after another Xid, or by tests of the maker's."""


_APPLICATION = (8, 11, 13, 25, 31, 32, 37, 43, 45, 66, 68, 69, 80)
_MEMORY = (48, 64, 95, 140, 157, 160, 161, 171, 172)
_NODE = (74, 79, 136, 144, 145, 146, 147, 148, 149, 150, 155, 167)
_GPU = (46, 54, 62, 78, 109, 110, 119, 120, 142, 143, 151, 158)
_NOTICE = (63, 92, 93, 94, 156)
_CLASSES = {
    **dict.fromkeys(_APPLICATION, XidClass.APPLICATION),
    **dict.fromkeys(_MEMORY, XidClass.MEMORY),
    **dict.fromkeys(_NODE, XidClass.NODE),
    **dict.fromkeys(_GPU, XidClass.GPU),
    **dict.fromkeys(_NOTICE, XidClass.NOTICE),
}
_WORDS = {
    8: "a kernel of the program did not end in time",
    13: "a kernel of the program failed",
    31: "a kernel of the program touched memory that is not its own",
    48: "uncorrectable memory error",
    54: "auxiliary power is missing",
    62: "its power controller halted",
    63: "a row of memory waits for its replacement",
    64: "a row of memory could not be replaced",
    74: "NVLink error",
    79: "it fell off the bus",
    92: "many corrected memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "a context switch timed out",
    119: "its firmware (GSP) does not answer",
    120: "its firmware (GSP) failed",
    136: "NVLink training failed",
    140: "uncorrectable memory error",
    143: "it could not be initialised",
    167: "PCIe timed out",
}
_OFF_THE_BUS = (79, 167)
_CAUSES = {
    XidClass.APPLICATION: "illegal_memory_access",
    XidClass.MEMORY: "gpu_ecc_error",
    XidClass.NODE: "nvlink_error",
    XidClass.GPU: "gpu_fault",
    XidClass.NOTICE: "gpu_ecc_error",
}
_REMEDIES = {
    XidClass.APPLICATION: "Run it again with CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer: the GPU is well.",
    XidClass.MEMORY: "Reset the GPU when nothing runs on it (nvidia-smi -r); replace it if rows cannot be remapped.",
    XidClass.NODE: "Take the node out; nvidia-smi nvlink -e and -q -d PCIE say which link. Restart, then reseat.",
    XidClass.GPU: "Reset the GPU when nothing runs on it (nvidia-smi -r); if it comes again, ask the vendor.",
    XidClass.NOTICE: "Reset the GPU when it is free, so that the spare row is used.",
}


def class_of(code: int) -> XidClass:
    return _CLASSES.get(code, XidClass.NOTHING)


def judge(told: Told, place: Place, job: Place | None) -> Trouble | None:
    """`place`: of the GPU; `job`: the start of the job whose process it names, where that is known. None: nothing."""
    assert told.kind == "xid"
    kind = class_of(told.code)
    if kind is XidClass.NOTHING or (kind is XidClass.APPLICATION and job is None):
        return None
    of_program = kind is XidClass.APPLICATION
    where = job if of_program and job is not None else place
    which = f"GPU {place.gpu}" if place.gpu is not None else place.uuid or "a GPU"
    words = _WORDS.get(told.code, "see NVIDIA's catalogue of Xids")
    return Trouble(
        detector=DETECTOR,
        place=where,
        gravity=Gravity.NOTE if kind in (XidClass.APPLICATION, XidClass.NOTICE) else Gravity.BROKEN,
        cause="gpu_fell_off_bus" if told.code in _OFF_THE_BUS else _CAUSES[kind],
        title=f"{which} of {place.node}: {words} (Xid {told.code})"
        if of_program
        else f"{which}: {words} (Xid {told.code})",
        since=told.at,
        quotes=(Quote(text=told.quoted, source="kernel" if told.text else "device", at=told.at, node=told.node),),
        remedy=_REMEDIES[kind],
        who="you" if of_program else "platform",
        lasts=kind is not XidClass.NOTICE and not of_program,
    )
