"""What CUDA is told of a node's GPUs: the numbers of their files, and MIG instances by UUID."""

from __future__ import annotations

from dataclasses import replace

from bireme.core.model.cluster import ClusterConfig
from bireme.core.model.resources import Device, GresPool
from bireme.slurm.conf.loading import parse_configuration
from bireme.slurm.variables.allocation import device_variables
from bireme.slurm.variables.cluster import cluster_facts


def visible(config: ClusterConfig, *indices: int, confined: bool = False) -> str:
    variables = device_variables(indices, "n1", cluster_facts(config), "SLURM_JOB_GPUS", confined=confined)
    assert variables["SLURM_JOB_GPUS"] == ",".join(map(str, indices))
    return variables["CUDA_VISIBLE_DEVICES"]


def configured(gres: str) -> ClusterConfig:
    text = "GresTypes=gpu\nNodeName=n1 CPUs=8 Gres=gpu:big:8,gpu:small:2\nPartitionName=p Nodes=n1\n"
    return parse_configuration({"slurm.conf": text, "gres.conf": gres}).cluster


def test_a_second_type_on_the_files_of_the_first() -> None:
    config = configured("Name=gpu Type=big File=/dev/nvidia[0-7]\nName=gpu Type=small File=/dev/nvidia[3-4]\n")
    assert visible(config, 8, 9) == "3,4"
    assert visible(config, 0, 7) == "0,7"
    assert visible(config, 8, confined=True) == "0"


def test_files_that_begin_elsewhere() -> None:
    config = configured("Name=gpu Type=big File=/dev/nvidia[2-9]\nName=gpu Type=small File=/dev/nvidia[0-1]\n")
    assert visible(config, 0, 1) == "2,3"
    assert visible(config, 8, 9) == "0,1"


def test_mig_instances_are_named_by_their_uuid() -> None:
    devices = (Device(0, "1g", "/dev/nvidia0", "MIG-aaa"), Device(1, "1g", "/dev/nvidia0", "MIG-bbb"))
    config = configured("")
    node = replace(config.nodes[0], gres=(GresPool("gpu", "1g", 2, devices),))
    assert visible(replace(config, nodes=(node,)), 0, 1) == "MIG-aaa,MIG-bbb"
