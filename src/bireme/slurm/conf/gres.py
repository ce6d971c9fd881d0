"""gres.conf, joined with the Gres of slurm.conf's nodes: pools of devices for every node.

slurm.conf says how many, gres.conf which; where both speak they must agree. A GPU without a gres.conf line is still a
device with a number of its own (found on the machine later, or rehearsed), other resources are then only counted.
Called by `loading`. Invariant: within one GRES name, a node's device indices are 0, 1, 2, ...
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bireme.core.model.cluster import NodeConfig
from bireme.core.model.resources import Device, GresPool, GresRequest
from bireme.slurm.conf.diagnostics import Findings, Place
from bireme.slurm.conf.keys import GRES_KEYS
from bireme.slurm.conf.lines import Line
from bireme.slurm.conf.nodes import NodeLine, expand_names
from bireme.slurm.conf.records import report_unknown_keys
from bireme.slurm.conf.values import count, indices, names, read_value, yes_no
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.gres import parse_gres

SHARED_GRES = frozenset({"mps", "shard"})
"""Parts of GPUs: File names the GPUs, and Count is shared out evenly over them; without File over all of the node."""

_ONE, _ALL = "one_sharing", "all_sharing"
_NUMBER_AT_END = re.compile(r"^.*?([0-9]+)$")
ENVIRONMENT_FLAGS = frozenset({"nvidia_gpu_env", "amd_gpu_env", "intel_gpu_env", "opencl_env", "no_gpu_env"})
FLAGS = ENVIRONMENT_FLAGS | {"countonly", "explicit", _ONE, _ALL}
_AUTODETECT = frozenset({"nvml", "nvidia", "nrt", "oneapi", "rsmi", "off", "full"})


@dataclass(frozen=True, slots=True)
class GresLine:
    """One line of gres.conf. `nodes` None: all nodes that have this GRES."""

    name: str
    type: str | None
    nodes: frozenset[str] | None
    devices: tuple[Device, ...]
    count: int
    flags: tuple[str, ...]
    place: Place
    gpu_files: tuple[str, ...] = ()
    """Of a GRES that is parts of GPUs: the GPUs that this line divides; empty: all of the node."""

    def applies_to(self, node: str) -> bool:
        return self.nodes is None or node in self.nodes


@dataclass(frozen=True, slots=True)
class GresFile:
    lines: tuple[GresLine, ...] = ()
    autodetect: str = ""
    """For all nodes: nvml, rsmi, ... or empty."""
    node_autodetect: Mapping[str, str] = field(default_factory=dict)

    def autodetect_on(self, node: str) -> str:
        method = self.node_autodetect.get(node, self.autodetect)
        return "" if method == "off" else method

    def one_sharing(self, name: str) -> bool:
        """Whether only one GPU of a node is given out in such parts at a time. On one line it holds for all nodes."""
        flags = {flag for line in self.lines if line.name == name for flag in line.flags}
        return _ONE in flags or (name == "mps" and _ALL not in flags)

    def flags_on(self, node: str, name: str) -> tuple[str, ...]:
        """All flags that lines of this GRES set on this node, each once."""
        return tuple(
            dict.fromkeys(
                flag for line in self.lines if line.name == name and line.applies_to(node) for flag in line.flags
            )
        )


def read_gres_file(lines: Iterable[Line], nodes: Mapping[str, NodeLine], findings: Findings) -> GresFile:
    gres_lines: list[GresLine] = []
    everywhere = ""
    by_node: dict[str, str] = {}
    for line in lines:
        report_unknown_keys(line, GRES_KEYS, findings, " of gres.conf")
        method = read_value(line, "AutoDetect", _autodetect, "", findings)
        named = expand_names(line, "NodeName", findings)
        for name in named:
            if name not in nodes:
                findings.warn(line.place, f"node {name} is not in slurm.conf; this line does not apply to it")
        if method and not named:
            everywhere = method
        by_node.update(dict.fromkeys(named, method) if method else {})
        if line.get("Name") and not read_value(line, "Ignore", yes_no, False, findings):
            gres_lines.append(_gres_line(line, frozenset(named) if named else None, findings))
        elif not method and not line.get("Name"):
            findings.error(line.place, "a line of gres.conf needs Name= (or AutoDetect=)")
    return GresFile(tuple(gres_lines), everywhere, by_node)


def _autodetect(text: str) -> str:
    if text.lower() not in _AUTODETECT:
        raise SlurmSyntaxError("one of nvml, nvidia, rsmi, oneapi, nrt, off")
    return text.lower()


def _gres_line(line: Line, nodes: frozenset[str] | None, findings: Findings) -> GresLine:
    name = (line.get("Name") or "").lower()
    devices = _devices(line, findings)
    counted = read_value(line, "Count", count, None, findings)
    links = line.get("Links", "Link")
    if links and len(devices) > 1:
        findings.error(line.place, "Links describes one device; write one line for each File")
    if counted is not None and devices and name not in SHARED_GRES and counted != len(devices):
        findings.error(line.place, f"Count={counted} but File names {len(devices)} devices; leave Count out")
    flags = tuple(flag.lower() for flag in names(line.get("Flags") or ""))
    for flag in flags:
        if flag not in FLAGS:
            findings.warn(line.place, f"unknown flag {flag} is ignored")
    if name in SHARED_GRES:
        files = tuple(device.file or "" for device in devices)
        each = (counted or 0) // max(1, len(files))
        total = each * max(1, len(files))
        return GresLine(name, line.get("Type") or None, nodes, (), total, flags, line.place, files)
    total = len(devices) if devices else 1 if counted is None else counted
    return GresLine(name, line.get("Type") or None, nodes, devices, total, flags, line.place)


def _devices(line: Line, findings: Findings) -> tuple[Device, ...]:
    """One device for each File; all of MultipleFiles together are one device (a MIG instance)."""
    files = expand_names(line, "File", findings)
    several = expand_names(line, "MultipleFiles", findings)
    if files and several:
        findings.error(line.place, "File and MultipleFiles exclude each other; keep one")
    if several:
        files = [",".join(several)]
    device = Device(
        index=0,
        type=line.get("Type") or None,
        cores=read_value(line, "Cores", indices, (), findings, "CPUs"),
        links=read_value(line, "Links", _links, (), findings, "Link"),
    )
    return tuple(replace(device, file=file) for file in files)


def _links(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError as error:
        raise SlurmSyntaxError("Links is a list of numbers, -1 for the device itself, as in -1,4,4,0") from error


def add_gres(
    nodes: Mapping[str, NodeLine], file: GresFile, gres_types: Sequence[str], findings: Findings
) -> tuple[NodeConfig, ...]:
    """The nodes with their pools. Contradictions between the two files are errors where gres.conf makes them."""
    known = {name.lower() for name in gres_types}
    _refuse_contradictions(file, findings)
    seen: set[tuple[Place, str]] = set()
    for line in file.lines:
        _refuse_unknown_type(line.name, known, line.place, seen, findings)
    configs: list[NodeConfig] = []
    reported: set[str] = set()
    for node in nodes.values():
        requests = _configured_gres(node, findings, reported)
        for name in dict.fromkeys(request.name for request in requests):
            _refuse_unknown_type(name, known, node.place, seen, findings)
        configs.append(replace(node.config, gres=_pools_of(node, requests, file, findings, reported)))
    _warn_of_unused_lines(configs, file, findings)
    return tuple(configs)


def _refuse_contradictions(file: GresFile, findings: Findings) -> None:
    for name in dict.fromkeys(line.name for line in file.lines):
        flagged = [line for line in file.lines if line.name == name and {_ONE, _ALL}.intersection(line.flags)]
        if len({flag for line in flagged for flag in line.flags if flag in (_ONE, _ALL)}) > 1:
            findings.error(flagged[-1].place, f"{_ONE} and {_ALL} of {name} exclude each other, on all nodes; keep one")


def _refuse_unknown_type(
    name: str, known: set[str], place: Place, seen: set[tuple[Place, str]], findings: Findings
) -> None:
    if name not in known and (place, name) not in seen:
        seen.add((place, name))
        findings.error(place, f"GRES {name} is not in GresTypes; add GresTypes={name} to slurm.conf")


def _configured_gres(node: NodeLine, findings: Findings, reported: set[str]) -> tuple[GresRequest, ...]:
    """The Gres of a NodeName line. `no_consume` changes nothing we track; a socket list is for gres.conf to say."""
    text = node.gres.replace(":no_consume", "")
    try:
        return parse_gres(",".join(part.partition("(S:")[0] for part in text.split(",") if not part[:1].isdigit()))
    except SlurmSyntaxError as error:
        _once(findings, reported, node.place, f"Gres={node.gres}: {error}")
        return ()


def _pools_of(
    node: NodeLine, requests: Sequence[GresRequest], file: GresFile, findings: Findings, reported: set[str]
) -> tuple[GresPool, ...]:
    pools: list[GresPool] = []
    names_asked = dict.fromkeys(request.name for request in requests)
    for name in sorted(names_asked, key=lambda name: name in SHARED_GRES):  # the GPUs before their parts
        wanted = [request for request in requests if request.name == name]
        lines = [line for line in file.lines if line.name == name and line.applies_to(node.config.name)]
        if not lines and name not in SHARED_GRES:
            pools += _numbered(_undescribed_pool(request) for request in wanted)
            continue
        problem = _disagreement(wanted, lines) if lines else ""
        if problem:
            where = f"node {node.config.name}: " if lines[0].nodes is None else ""
            _once(
                findings,
                reported,
                lines[-1].place,
                f"{where}{problem} ({node.place}); Gres={_as_gres(lines)} there would agree",
            )
        if name in SHARED_GRES:
            gpus = [device for pool in pools if pool.name == "gpu" for device in pool.devices]
            for request in wanted:
                try:
                    pools.append(replace(_pool_of_parts(request, lines, gpus), one_sharing=file.one_sharing(name)))
                except SlurmSyntaxError as error:
                    _once(findings, reported, lines[-1].place if lines else node.place, str(error))
            continue
        pools += _numbered(_described_pools(wanted, lines))
    return tuple(pools)


def _pool_of_parts(request: GresRequest, lines: Sequence[GresLine], gpus: Sequence[Device]) -> GresPool:
    """Where File names GPUs their line's Count is divided evenly; else slurm.conf's count, over all of the type."""
    divided = [gpu for gpu in gpus if request.type in (None, gpu.type)]
    if not divided:
        kind = f"gpu:{request.type}" if request.type else "gpu"
        raise SlurmSyntaxError(f"{request.kind} is parts of GPUs, but the node has no {kind}; add Gres={kind}:COUNT")
    if all(gpu.file is None for gpu in gpus):  # AutoDetect finds the files later: /dev/nvidia2 will be number 2
        gpus = [replace(gpu, file=f"{gpu.index}") for gpu in gpus]
        divided = [gpu for gpu in gpus if request.type in (None, gpu.type)]
    parts: dict[int, int] = {}
    with_files = [line for line in lines if line.gpu_files]
    for line in with_files:
        for file in line.gpu_files:
            if all(not _is_file(gpu, file) for gpu in gpus):
                raise SlurmSyntaxError(f"{file} is not a GPU of the node; add Name=gpu File={file}")
            for gpu in divided:
                if _is_file(gpu, file):
                    parts[gpu.index] = parts.get(gpu.index, 0) + line.count // len(line.gpu_files)
    left = request.count
    for position, gpu in enumerate(divided if not with_files else ()):
        parts[gpu.index] = left // (len(divided) - position)
        left -= parts[gpu.index]
    shares = tuple((gpu, count) for gpu, count in sorted(parts.items()) if count)
    return GresPool(request.name, request.type, sum(count for _, count in shares), (), shares)


def _is_file(gpu: Device, file: str) -> bool:
    return gpu.file in (file, _NUMBER_AT_END.sub(r"\1", file))


def _once(findings: Findings, reported: set[str], place: Place, message: str) -> None:
    """A line that describes hundreds of nodes is reported for the first of them."""
    key = f"{place}"
    if key not in reported:
        reported.add(key)
        findings.error(place, message)


def _disagreement(wanted: Sequence[GresRequest], lines: Sequence[GresLine]) -> str:
    """In words, how the lines of gres.conf differ from what slurm.conf asks of them; empty when they agree."""
    name = lines[0].name
    both_typed = all(request.type for request in wanted) and all(line.type for line in lines)
    if not both_typed:
        described, configured = sum(line.count for line in lines), sum(request.count for request in wanted)
        return "" if described == configured else f"gres.conf has {described} {name}, slurm.conf has {configured}"
    for type_ in dict.fromkeys([*(request.type for request in wanted), *(line.type for line in lines)]):
        described = sum(line.count for line in lines if line.type == type_)
        configured = sum(request.count for request in wanted if request.type == type_)
        if described != configured:
            return f"gres.conf has {described} {name}:{type_}, slurm.conf has {configured}"
    return ""


def _as_gres(lines: Sequence[GresLine]) -> str:
    """What slurm.conf would have to say of these lines."""
    return ",".join(
        f"{lines[0].name}{f':{type_}' if type_ else ''}:{sum(line.count for line in lines if line.type == type_)}"
        for type_ in dict.fromkeys(line.type for line in lines)
    )


def _undescribed_pool(request: GresRequest) -> GresPool:
    devices: tuple[Device, ...] = ()
    if request.name == "gpu":
        devices = tuple(Device(index, request.type) for index in range(request.count))
    return GresPool(request.name, request.type, request.count, devices)


def _described_pools(wanted: Sequence[GresRequest], lines: Sequence[GresLine]) -> Iterable[GresPool]:
    """One pool a type. Lines without a type take the types of slurm.conf, in order."""
    name = lines[0].name
    untyped = [device for line in lines if line.type is None for device in line.devices]
    if untyped and any(request.type for request in wanted):
        at = 0
        for request in wanted:
            devices = tuple(replace(device, type=request.type) for device in untyped[at : at + request.count])
            at += request.count
            yield GresPool(name, request.type, request.count, devices)
        return
    for type_ in dict.fromkeys(line.type for line in lines):
        of_type = [line for line in lines if line.type == type_]
        devices = tuple(device for line in of_type for device in line.devices)
        total = sum(line.count for line in of_type)
        if type_ is None and len(wanted) == 1:
            type_ = wanted[0].type
        yield (
            _undescribed_pool(GresRequest(name, type_, total)) if not devices else GresPool(name, type_, total, devices)
        )


def _numbered(pools: Iterable[GresPool]) -> list[GresPool]:
    """Device numbers run on over all types of one GRES name, as Slurm counts them."""
    numbered: list[GresPool] = []
    first = 0
    for pool in pools:
        devices = tuple(replace(device, index=first + offset) for offset, device in enumerate(pool.devices))
        first += len(devices)
        numbered.append(replace(pool, devices=devices))
    return numbered


def _warn_of_unused_lines(configs: Sequence[NodeConfig], file: GresFile, findings: Findings) -> None:
    for line in file.lines:
        if not any(line.applies_to(node.name) and node.gres_count(line.name) for node in configs):
            findings.warn(
                line.place, f"no node of slurm.conf that this line describes has Gres={line.name}; it is unused"
            )
    for node in configs:
        files: dict[str, str | None] = {}
        for pool in node.gres:
            for device in pool.devices:
                if device.file and files.setdefault(device.file, pool.type) != pool.type:
                    place = next(line.place for line in reversed(file.lines) if line.type == pool.type)
                    findings.warn(
                        place,
                        f"{device.file} is in {pool.name}:{files[device.file]} and in {pool.name}:{pool.type}; "
                        "jobs with either will share it",
                    )
                    return
