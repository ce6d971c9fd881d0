"""NodeName, DownNodes and NodeSet lines to `NodeConfig`s.

GRES are only counted here; `gres` adds the devices. Called by `loading`.
Invariant: cpus is the number of threads, of cores or of sockets of the node, whichever the file chose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bireme.core.model.cluster import NodeConfig
from bireme.slurm.conf.diagnostics import Findings, Place
from bireme.slurm.conf.lines import Line
from bireme.slurm.conf.values import mebibytes, names, positive, read_value, whole
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.hostlist import expand, sort_names

CONFIGURABLE_STATES = frozenset(
    {"CLOUD", "DOWN", "DRAIN", "FAIL", "FAILING", "FUTURE", "UNKNOWN", "IDLE", "POWERED_DOWN", "PLANNED", "EXTERNAL"}
)
ELASTIC_STATES = frozenset({"CLOUD", "EXTERNAL", "POWERED_DOWN"})
"""Of nodes that another program would have to start first: they are down, since Bireme calls none."""
DEFAULT_SLURMD_PORT = 6818


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A node with where it is defined and the text of its Gres."""

    config: NodeConfig
    place: Place
    gres: str


def read_nodes(lines: Iterable[Line], findings: Findings) -> dict[str, NodeLine]:
    """Nodes by name, in the order of their names, whatever the file's: Slurm's order of everything that lists nodes."""
    nodes: dict[str, NodeLine] = {}
    for line in lines:
        for node in _nodes_of(line, findings):
            if node.config.name in nodes:
                first = nodes[node.config.name].place
                findings.error(line.place, f"node {node.config.name} is already defined at {first}")
            else:
                nodes[node.config.name] = node
    return {name: nodes[name] for name in sort_names(nodes)}


def apply_down_nodes(lines: Iterable[Line], nodes: dict[str, NodeLine], findings: Findings) -> None:
    for line in lines:
        state = _state_of(line, "DOWN", findings)
        for name in expand_names(line, "DownNodes", findings):
            if name not in nodes:
                findings.error(line.place, f"DownNodes names {name}, which no NodeName line defines")
                continue
            config = replace(nodes[name].config, initial_state=state, reason=line.get("Reason") or "")
            nodes[name] = replace(nodes[name], config=config)


def read_node_sets(
    lines: Iterable[Line], nodes: Mapping[str, NodeLine], findings: Findings
) -> dict[str, tuple[str, ...]]:
    """Names for sets of nodes, which partitions may use: by list, by feature, or both together."""
    sets: dict[str, tuple[str, ...]] = {}
    for line in lines:
        listed = expand_names(line, "Nodes", findings)
        for name in listed:
            if name not in nodes:
                findings.error(line.place, f"NodeSet names node {name}, which no NodeName line defines")
        feature = line.get("Feature")
        featured = [name for name, node in nodes.items() if feature and feature in node.config.features]
        for set_name in names(line.get("NodeSet") or ""):
            if set_name in nodes:
                findings.error(line.place, f"NodeSet {set_name} has the name of a node; give it another")
            sets[set_name] = tuple(dict.fromkeys([*listed, *featured]))
    return sets


def expand_names(line: Line, key: str, findings: Findings) -> list[str]:
    """The hostlist of a key; one that cannot be read is an error and names nothing."""
    text = line.get(key)
    try:
        return expand(text) if text else []
    except SlurmSyntaxError as error:
        findings.error(line.place, f"{key}={text}: {error}")
        return []


def _nodes_of(line: Line, findings: Findings) -> list[NodeLine]:
    node_names = expand_names(line, "NodeName", findings)
    if "ALL" in (name.upper() for name in node_names):
        findings.error(line.place, "NodeName=ALL is reserved; name the nodes")
        return []
    hostnames = _one_each(line, "NodeHostname", node_names, node_names, findings)
    addresses = _one_each(line, "NodeAddr", node_names, hostnames, findings)
    ports = _ports(line, len(node_names), findings)
    template = _common_part(line, findings)
    if template.initial_state in ELASTIC_STATES:
        template = _unavailable(template, ",".join(node_names), line.place, findings)
    gres = line.get("Gres") or ""
    return [
        NodeLine(replace(template, name=name, hostname=hostname, address=address, port=port), line.place, gres)
        for name, hostname, address, port in zip(node_names, hostnames, addresses, ports)
    ]


def _common_part(line: Line, findings: Findings) -> NodeConfig:
    boards = read_value(line, "Boards", positive, 1, findings)
    sockets, cores, threads, cpus = _processors(line, boards, findings)
    return NodeConfig(
        name="",
        cpus=cpus,
        boards=boards,
        sockets=sockets,
        cores_per_socket=cores,
        threads_per_core=threads,
        memory_mib=read_value(line, "RealMemory", mebibytes, 1, findings),
        tmp_disk_mib=read_value(line, "TmpDisk", mebibytes, 0, findings),
        weight=read_value(line, "Weight", whole, 1, findings),
        features=read_value(line, "Features", names, (), findings, "Feature"),
        initial_state=_state_of(line, "UNKNOWN", findings),
        reason=line.get("Reason") or "",
    )


def _unavailable(node: NodeConfig, names: str, place: Place, findings: Findings) -> NodeConfig:
    """A node that only ResumeProgram would bring: shown as down, with why, and said at the start."""
    state = node.initial_state
    findings.warn(
        place,
        f"State={state} of {names} is not applied: Bireme does not start nodes (ResumeProgram is not called), so they "
        "are DOWN; `scontrol update nodename=... state=resume` takes one into service that runs already",
    )
    return replace(node, initial_state="DOWN", reason=node.reason or f"State={state}: Bireme does not start nodes")


def _processors(line: Line, boards: int, findings: Findings) -> tuple[int, int, int, int]:
    """(sockets of all boards, cores a socket, threads a core, cpus), each worked out from the others if not given."""
    if line.get("Sockets") and line.get("SocketsPerBoard"):
        findings.error(line.place, "Sockets and SocketsPerBoard exclude each other; keep one")
    cores = read_value(line, "CoresPerSocket", positive, 1, findings)
    threads = read_value(line, "ThreadsPerCore", positive, 1, findings)
    cpus = read_value(line, "CPUs", positive, 0, findings, "Procs")
    per_board = read_value(line, "SocketsPerBoard", positive, 0, findings, "Sockets")
    sockets = boards * per_board or max(1, cpus // (cores * threads))
    total = sockets * cores * threads
    if cpus and cpus not in (total, sockets * cores, sockets):
        findings.error(
            line.place,
            f"CPUs={cpus} is neither the sockets ({sockets}), the cores ({sockets * cores}) nor the threads ({total}) "
            "that Boards, Sockets, CoresPerSocket and ThreadsPerCore give",
        )
    return sockets, cores, threads, cpus or total


def _state_of(line: Line, default: str, findings: Findings) -> str:
    state = (line.get("State") or default).upper()
    if state not in CONFIGURABLE_STATES:
        findings.error(
            line.place, f"State={state} is not a state to configure; use UNKNOWN, DOWN, DRAIN, FAIL or FUTURE"
        )
        return default
    return "UNKNOWN" if state == "IDLE" else state


def _one_each(
    line: Line, key: str, node_names: Sequence[str], default: Sequence[str], findings: Findings
) -> Sequence[str]:
    """NodeHostname and NodeAddr: one for each node, or one for all (virtual nodes of one host)."""
    given = expand_names(line, key, findings)
    if not given:
        return default
    if len(given) == 1:
        return given * len(node_names)
    if len(given) != len(node_names):
        findings.error(line.place, f"{key} names {len(given)} hosts for {len(node_names)} nodes; it must name as many")
        return default
    return given


def _ports(line: Line, wanted: int, findings: Findings) -> list[int]:
    text = line.get("Port")
    if text is None:
        return [DEFAULT_SLURMD_PORT] * wanted
    try:
        ports = [whole(port) for port in expand(text if "[" in text else f"[{text}]")]
    except SlurmSyntaxError as error:
        findings.error(line.place, f"Port={text}: {error}")
        return [DEFAULT_SLURMD_PORT] * wanted
    if len(ports) == 1:
        return ports * wanted
    if len(ports) != wanted:
        findings.error(line.place, f"Port names {len(ports)} ports for {wanted} nodes; it must name as many")
    return ports
