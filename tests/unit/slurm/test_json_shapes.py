"""The JSON that clients parse: triples, the envelope, and text that any reader takes."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from bireme.slurm.json_shapes.accounting import accounting_shapes
from bireme.slurm.json_shapes.envelope import dump, envelope, exit_shape, triple
from bireme.slurm.json_shapes.jobs import job_shape
from bireme.slurm.json_shapes.nodes import node_shape, partition_shape, sinfo_shape
from bireme.slurm.version import SLURM_VERSION

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


def test_numbers_that_may_be_absent_or_unlimited() -> None:
    assert triple(5) == {"set": True, "infinite": False, "number": 5}
    assert triple(None) == {"set": False, "infinite": False, "number": 0}
    assert triple(None, infinite=True) == {"set": False, "infinite": True, "number": 0}


def test_exit_codes() -> None:
    assert exit_shape(0, 0)["status"] == ["SUCCESS"]
    assert exit_shape(3, 0)["return_code"]["number"] == 3
    assert exit_shape(0, 9)["signal"]["id"] == {"set": True, "infinite": False, "number": 9}


def test_envelope_says_the_version_in_parts() -> None:
    shape = envelope("squeue", {"jobs": []})
    version = shape["meta"]["slurm"]["version"]
    assert f"{version['major']}.{version['minor']}.{version['micro']}" == SLURM_VERSION
    assert (shape["jobs"], shape["errors"], shape["warnings"]) == ([], [], [])


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=4))
def test_json_text_reads_back(shape: dict[str, object]) -> None:
    assert json.loads(dump(shape)) == shape


def test_yaml_text() -> None:
    assert dump({"jobs": [{"id": 1, "nodes": []}], "errors": []}, yaml=True) == (
        '---\n"jobs":\n  -\n    "id": 1\n    "nodes": []\n"errors": []\n...\n'
    )


def test_a_bare_record_has_every_key_of_a_full_one() -> None:
    bare = job_shape({"job_id": 1, "state": "PENDING"}, {})
    full = job_shape(
        {
            "job_id": 2, "state": "COMPLETING", "base_state": "FAILED", "array_job_id": 1, "array_task_id": 7,
            "memory_per": "gpu", "memory_mib": 1024, "tres_per_node": "gpu:2", "node_list": "n1",
            "mail_type": "END,FAIL",
            "cpus_per_task": 2, "tres_per_task": "gpu:h100:1", "std_out": "a", "std_err": "b",
            "shares": [{"node": "n1", "cpus": 2, "memory_mib": 512, "cpu_ids": [6, 7],
                        "gres": [{"name": "gpu", "type": "h100", "count": 2, "indices": [0, 1]}]}],
        },
        {"n1": {"name": "n1", "sockets": 2, "cores_per_socket": 2, "threads_per_core": 2}},
    )  # fmt: skip
    assert bare.keys() == full.keys()
    assert full["job_state"] == ["FAILED", "COMPLETING"]
    assert full["tres_per_node"] == "gres/gpu:2"
    assert full["memory_per_tres"] == "gres/gpu:1024"
    assert full["gres_detail"] == ["gpu:h100:2(IDX:0-1)"]
    assert full["mail_type"] == ["END", "FAIL"]
    assert full["job_resources"]["nodes"]["count"] == 1
    share = full["job_resources"]["nodes"]["allocation"][0]
    assert share["cpus"] == {"count": 2, "used": 2}
    assert [[core["status"] for core in socket["cores"]] for socket in share["sockets"]] == [
        [["UNALLOCATED"], ["UNALLOCATED"]],
        [["UNALLOCATED"], ["ALLOCATED"]],
    ]
    assert full["tres_per_task"] == "cpu=2,gres/gpu:h100=1"
    assert (full["standard_error"], bare["standard_error"]) == ("b", "")


def test_accounting() -> None:
    steps = [{"step_id": 0, "state": "COMPLETED", "usage": {"user_cpu_s": 1.5, "system_cpu_s": 0.25}}]
    (shape,) = accounting_shapes([{"job_id": 4, "state": "RUNNING", "end_time": 99, "segment": 4, "steps": steps}])
    assert shape["segment_size"] == 4
    assert shape["time"]["end"] == 0  # only expected so far
    assert shape["time"]["total"] == {"seconds": 1, "microseconds": 750000}
    assert shape["steps"][0]["step"]["id"] == "4.0"


def test_a_tres_has_one_id_in_a_document() -> None:
    two = {"gres/gpu:h100": 1, "gres/gpu": 1, "cpu": 2}
    first, second = accounting_shapes(
        [
            {"job_id": 1, "state": "RUNNING", "tres_allocated": two},
            {"job_id": 2, "state": "RUNNING", "steps": [{"step_id": 0, "tres_allocated": {"gres/gpu:h100": 1}}]},
        ]
    )
    assert first["tres"]["allocated"] == [
        {"type": "cpu", "name": "", "id": 1, "count": 2},
        {"type": "gres", "name": "gpu", "id": 1001, "count": 1},
        {"type": "gres", "name": "gpu:h100", "id": 1002, "count": 1},
    ]
    (step,) = second["steps"]
    assert step["tres"]["allocated"] == [{"type": "gres", "name": "gpu:h100", "id": 1002, "count": 1}]


def test_nodes_and_partitions() -> None:
    nodes = [
        {"name": "n1", "state": "MIXED", "cpus": 8, "cpus_allocated": 2},
        {"name": "n2", "state": "DOWN", "cpus": 8},
    ]
    partition = {"name": "gpu", "nodes": ["n1", "n2"], "max_time_s": None, "default_time_s": 600}
    assert node_shape(nodes[0])["alloc_idle_cpus"] == 6
    assert partition_shape(partition)["maximums"]["time"]["infinite"] is True
    assert partition_shape(partition)["defaults"]["time"]["number"] == 10
    groups = sinfo_shape([partition], nodes)
    assert [group["nodes"]["nodes"] for group in groups] == [["n1"], ["n2"]]
    assert groups[0]["cpus"]["allocated"] == 2


def test_what_a_partition_shares_and_limits() -> None:
    shape = partition_shape(
        {"name": "shared", "over_subscribe": "FORCE:4", "default": True, "max_memory_per_cpu_mib": 512, "lln": True}
    )
    assert shape["flags"] == ["DEFAULT", "LLN"]
    assert shape["maximums"]["oversubscribe"] == {"jobs": 4, "flags": ["force"]}
    assert shape["maximums"]["partition_memory_per_cpu"] == triple(512)
    assert shape["maximums"]["partition_memory_per_node"] == triple(None)
    assert shape["defaults"]["partition_memory_per_node"] == triple(0)
    assert shape["preempt_mode"] == ["CLUSTER_GLOBAL"]
    assert (shape["defaults"]["job"], shape["tres"]["billing_weights"]) == ("", "")
    weighed = partition_shape(
        {"name": "gpu", "default_cpus_per_gpu": 4, "default_memory_per_gpu_mib": 8192,
         "tres_billing_weights": [["cpu", 1.0], ["mem", 0.25 / 1024]]}
    )  # fmt: skip
    assert weighed["defaults"]["job"] == "DefCpuPerGPU=4,DefMemPerGPU=8192"
    assert weighed["tres"]["billing_weights"] == "CPU=1.0,Mem=0.25G"
