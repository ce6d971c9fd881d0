"""Why a request is not granted: Slurm's error name, number and sentence, raised by whoever decided.

The sentences are those a Slurm user knows. `remark` is the line that Slurm says before the sentence, where it has one;
`hint` adds what Bireme knows beyond both (shown after the sentence).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class _Code:
    errno: int
    text: str


class Why(Enum):
    INVALID_PARTITION_NAME = _Code(2000, "Invalid partition name specified")
    DEFAULT_PARTITION_NOT_SET = _Code(2001, "No partition specified or system default partition")
    ACCESS_DENIED = _Code(2002, "Access/permission denied")
    REQUESTED_NODES_NOT_IN_PARTITION = _Code(2004, "Requested nodes not in this partition")
    TOO_MANY_REQUESTED_CPUS = _Code(2005, "More processors requested than permitted")
    INVALID_NODE_COUNT = _Code(2006, "Node count specification invalid")
    JOB_SCRIPT_MISSING = _Code(2009, "Job script not specified")
    NODE_CONFIG_UNAVAILABLE = _Code(2014, "Requested node configuration is not available")
    PARTITION_CONFIG_UNAVAILABLE = _Code(2015, "Requested partition configuration not available now")
    NODES_BUSY = _Code(2016, "Requested nodes are busy")
    INVALID_JOB_ID = _Code(2017, "Invalid job id specified")
    INVALID_NODE_NAME = _Code(2018, "Invalid node name specified")
    TRANSITION_STATE_NO_UPDATE = _Code(2020, "Job can not be altered now, try again later")
    ALREADY_DONE = _Code(2021, "Job/step already completing or completed")
    BAD_DISTRIBUTION = _Code(2023, "Task distribution specification invalid")
    BAD_TASK_COUNT = _Code(2025, "Task count specification invalid")
    JOB_PENDING = _Code(2024, "Job is pending execution")
    DISABLED = _Code(2037, "Requested operation is presently disabled")
    DEPENDENCY = _Code(2038, "Job dependency problem")
    BATCH_ONLY = _Code(2039, "Only batch jobs are accepted or processed")
    JOB_SUSPENDED = _Code(2077, "Job is current suspended, requested operation disabled")
    INVALID_TASK_MEMORY = _Code(2044, "Memory required by task is not available")
    INVALID_ACCOUNT = _Code(2045, "Invalid account or account/partition combination specified")
    INVALID_LICENSES = _Code(2048, "Invalid license specification")
    ACCOUNTING_POLICY = _Code(
        2050, "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    )
    INVALID_TIME_LIMIT = _Code(2051, "Requested time limit is invalid (missing or exceeds some limit)")
    RESERVATION_ACCESS = _Code(2052, "Access denied to requested reservation")
    INVALID_TIME_MIN_LIMIT = _Code(2124, "Invalid time-min specification (exceeds job's time or other limits)")
    RESERVATION_INVALID = _Code(2053, "Requested reservation is invalid")
    INVALID_TIME_VALUE = _Code(2054, "Invalid time specified")
    RESERVATION_BUSY = _Code(2055, "Requested reservation is in use")
    RESERVATION_OVERLAP = _Code(2058, "Requested reservation overlaps with another reservation")
    RESERVATION_EMPTY = _Code(2080, "Reservation request lacks users, groups or accounts")
    RESERVATION_NAME_DUP = _Code(2082, "Duplicate reservation name")
    RESERVATION_STARTED = _Code(2104, "Reservation already started")
    USER_ID_MISSING = _Code(2010, "Invalid user id")
    PATHNAME_TOO_LONG = _Code(2012, "Pathname of a file, directory or other parameter too long")
    GROUP_ID_MISSING = _Code(2113, "Invalid group id")
    JOB_FINISHED = _Code(2084, "Job has already finished")
    JOB_NOT_RUNNING = _Code(2085, "Job is not running")
    JOB_NOT_PENDING = _Code(2073, "Job is no longer pending execution")
    JOB_HELD = _Code(2042, "Job is in held state, pending scheduler release")
    JOB_NOT_SUSPENDED = _Code(2087, "Job is not suspended")
    INVALID_QOS = _Code(2066, "Invalid qos specification")
    INVALID_GRES = _Code(2072, "Invalid generic resource (gres) specification")
    INVALID_FEATURE = _Code(2029, "Invalid feature specification")
    INVALID_ARRAY = _Code(2081, "Invalid job array specification")
    PARTITION_NOT_AVAILABLE = _Code(2070, "Required partition not available (inactive or drain)")
    REQUESTED_TOPO_CONFIG_UNAVAILABLE = _Code(2178, "Requested topology configuration is not available")
    NOT_WHOLE_HET_JOB = _Code(2108, "Operation not permitted on individual component of heterogeneous job")
    INVALID_NICE = _Code(2123, "Invalid --nice value")
    NOT_SUPPORTED = _Code(2036, "Requested operation not supported on this system")
    OWN_COMMAND = _Code(2036, "Requested operation not supported here, but by the command of the cluster itself")
    """The cluster's own scheduler does it, with its own command of the same name: ours becomes that."""
    ERROR = _Code(-1, "Unspecified error")
    """The hint says all: an order to the account book that cannot be carried out."""
    INVALID_SERVICE = _Code(-1, "No such service")
    """Services are Bireme's own: Slurm has no numbers for what can be wrong with them."""
    INVALID_FINDING = _Code(-1, "No such finding")
    INVALID_HEALING = _Code(-1, "No such healing")
    INVALID_SERVICE_SPEC = _Code(-1, "Invalid service specification")
    SERVICE_NAME_TAKEN = _Code(-1, "Service name is taken")
    TOO_MANY_SERVICES = _Code(-1, "Too many services")
    SERVICE_STOPPING = _Code(-1, "Service is being stopped")
    INVALID_REPLICA_COUNT = _Code(-1, "Invalid number of replicas")
    INVALID_REVISION = _Code(-1, "No such revision")
    NOTHING_TO_ROLL_BACK = _Code(-1, "Nothing to roll back")
    NOTHING_TO_PROMOTE = _Code(-1, "Nothing to promote")
    INVALID_SERVICE_KEY = _Code(-1, "No such key")
    SERVICE_KEY_EXISTS = _Code(-1, "Key exists already")
    TOO_MANY_SERVICE_KEYS = _Code(-1, "Too many keys")
    TOO_MANY_JOBS = _Code(11, "Slurm temporarily unable to accept job, sleeping and retrying")


class Refusal(Exception):  # noqa: N818  (a decision, not an error of the program)
    """The request is not granted; nothing was changed."""

    def __init__(self, why: Why, hint: str = "", remark: str = "", said: str = "") -> None:
        """`said`: another scheduler's own sentence, where it refused."""
        super().__init__(said or why.value.text)
        self.why = why
        self.hint = hint
        self.remark = remark
        self.said = said

    @property
    def message(self) -> str:
        return self.said or self.why.value.text

    @property
    def name(self) -> str:
        return f"ESLURM_{self.why.name}"

    @property
    def errno(self) -> int:
        return self.why.value.errno


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, from the connection's credentials."""

    uid: int
    gid: int
    user: str
    admin: bool = False
    group: str = ""
    groups: tuple[int, ...] = ()
    group_names: tuple[str, ...] = ()

    def may_change(self, owner_uid: int) -> bool:
        return self.admin or self.uid == owner_uid
