"""Whole configurations: what a cluster is made of, what is warned about, what contradicts itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.core.model.cluster import NodeConfig, PartitionState
from bireme.slurm.conf.diagnostics import ConfigurationError
from bireme.slurm.conf.keys import GLOBAL_KEYS, GRES_KEYS, NODE_KEYS, PARTITION_KEYS, SWITCH_KEYS
from bireme.slurm.conf.loading import Configuration, load_rules, parse_configuration

NODES = "ClusterName=c\nGresTypes=gpu\nNodeName=n[1-2] CPUs=8 Gres=gpu:h100:2\n"


def load(slurm: str, **others: str) -> Configuration:
    return parse_configuration({"slurm.conf": slurm, **{f"{name}.conf": text for name, text in others.items()}})


def node(slurm: str, **others: str) -> NodeConfig:
    configuration = load(slurm, **others)
    assert configuration.warnings == ()
    return configuration.cluster.nodes[0]


def problems(slurm: str, **others: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load(slurm, **others)
    return [str(diagnostic) for diagnostic in caught.value.diagnostics]


def test_a_training_cluster() -> None:
    configuration = load(
        "ClusterName=ship\nSlurmctldHost=head\nGresTypes=gpu\n"
        "NodeName=oar-[001-004] \\\n  Gres=gpu:h100:8 \\\n  CPUs=128 \\\n  RealMemory=2048000 \\\n  State=UNKNOWN\n"
        "PartitionName=train \\\n Nodes=oar-[001-004] Default=YES MaxTime=168:00:00 State=UP\n"
        "PartitionName=debug Nodes=oar-001 MaxTime=02:00:00 PriorityJobFactor=2\n",
        gres="AutoDetect=nvml\n"
        + "".join(f"NodeName=oar-00{n} Name=gpu Type=h100 File=/dev/nvidia[0-7]\n" for n in range(1, 5)),
        topology="SwitchName=s1 Switches=l1:l2\nSwitchName=l1 Nodes=oar-[001-002]\nSwitchName=l2 Nodes=oar-[003-004]\n",
    )
    cluster = configuration.cluster
    assert configuration.warnings == ()
    assert [n.name for n in cluster.nodes] == ["oar-001", "oar-002", "oar-003", "oar-004"]
    first = cluster.nodes[0]
    assert (first.cpus, first.sockets, first.memory_mib, first.gres_count("gpu", "h100")) == (128, 128, 2048000, 8)
    assert [device.file for device in first.gres[0].devices][-1] == "/dev/nvidia7"
    assert configuration.gres.autodetect_on("oar-001") == "nvml"
    train, debug = cluster.partitions
    assert (train.default, train.max_time_s, train.state) == (True, 168 * 3600, PartitionState.UP)
    assert (debug.nodes, debug.priority_job_factor) == (("oar-001",), 2)
    assert cluster.topology.plugin == "topology/tree"
    assert cluster.topology.switches[0].switches == ("l1", "l2")
    assert cluster.default_partition() is train


def test_keys_ignore_case_and_keep_slurms_spelling() -> None:
    configuration = load("clustername=C\nKILLWAIT=7\nnodename=n1 cpus=4\n")
    assert configuration.cluster.settings.kill_wait_s == 7
    assert configuration.cluster.raw == {"ClusterName": "C", "KillWait": "7"}
    assert configuration.cluster.name == "c"


def test_default_lines_add_up_and_are_overridden() -> None:
    cluster = load(
        "NodeName=DEFAULT CPUs=4 RealMemory=100\nNodeName=a\nNodeName=DEFAULT Weight=9\nNodeName=b Procs=2\n"
        "PartitionName=DEFAULT MaxTime=30 MaxNodes=2\nPartitionName=p Nodes=a\n"
        "PartitionName=q Nodes=ALL MaxTime=UNLIMITED\n"
    ).cluster
    a, b = cluster.nodes
    assert (a.cpus, a.memory_mib, a.weight) == (4, 100, 1)
    assert (b.cpus, b.memory_mib, b.weight) == (2, 100, 9)
    assert [(p.max_time_s, p.max_nodes, p.nodes) for p in cluster.partitions] == [
        (1800, 2, ("a",)),
        (None, 2, ("a", "b")),
    ]


@pytest.mark.parametrize(
    ("text", "cpus", "sockets", "cores", "threads"),
    [
        ("CPUs=16", 16, 16, 1, 1),
        ("Sockets=2 CoresPerSocket=4 ThreadsPerCore=2", 16, 2, 4, 2),
        ("CPUs=16 CoresPerSocket=4 ThreadsPerCore=2", 16, 2, 4, 2),
        ("CPUs=8 Sockets=2 CoresPerSocket=4 ThreadsPerCore=2", 8, 2, 4, 2),
        ("Boards=2 SocketsPerBoard=2 CoresPerSocket=4", 16, 4, 4, 1),
        ("", 1, 1, 1, 1),
    ],
)
def test_processors(text: str, cpus: int, sockets: int, cores: int, threads: int) -> None:
    found = node(f"NodeName=n1 {text}")
    assert (found.cpus, found.sockets, found.cores_per_socket, found.threads_per_core) == (
        cpus,
        sockets,
        cores,
        threads,
    )


def test_virtual_nodes_of_one_host() -> None:
    nodes = load("NodeName=v[1-3] NodeHostname=box NodeAddr=127.0.0.[1-3] Port=[7001-7003]").cluster.nodes
    assert [(n.hostname, n.address, n.port) for n in nodes] == [
        ("box", "127.0.0.1", 7001),
        ("box", "127.0.0.2", 7002),
        ("box", "127.0.0.3", 7003),
    ]


def test_down_nodes_and_node_sets() -> None:
    cluster = load(
        'NodeName=a[1-2] Feature=big\nNodeName=b1\nDownNodes=a2 State=DRAIN Reason="bad fan"\n'
        "NodeSet=large Feature=big\nPartitionName=p Nodes=large,b1\n"
    ).cluster
    assert (cluster.nodes[1].initial_state, cluster.nodes[1].reason) == ("DRAIN", "bad fan")
    assert cluster.partitions[0].nodes == ("a1", "a2", "b1")


def test_devices_have_cores_and_links() -> None:
    found = node(
        "GresTypes=gpu\nNodeName=n1 CPUs=8 Gres=gpu:a100:2",
        gres="Name=gpu Type=a100 File=/dev/nvidia0 Cores=[0-1] Links=-1,4\n"
        "Name=gpu Type=a100 File=/dev/nvidia1 COREs=2,3 Links=4,-1\n",
    )
    assert [(d.index, d.cores, d.links) for d in found.gres[0].devices] == [(0, (0, 1), (-1, 4)), (1, (2, 3), (4, -1))]


def test_mig_profiles_of_the_same_cards_are_understood_and_said_to_share() -> None:
    configuration = load(
        "GresTypes=gpu\nNodeName=n1 CPUs=8 Gres=gpu:a100_3g.20gb:2,gpu:a100_1g.5gb:2",
        gres="Name=gpu Type=a100_3g.20gb File=/dev/nvidia[0-1] Cores=[0-1]\n"
        "Name=gpu Type=a100_1g.5gb File=/dev/nvidia[0-1] Cores=[2-3]\n",
    )
    pools = configuration.cluster.nodes[0].gres
    assert [[d.index for d in pool.devices] for pool in pools] == [[0, 1], [2, 3]]
    assert [str(w) for w in configuration.warnings] == [
        "gres.conf:2: /dev/nvidia0 is in gpu:a100_3g.20gb and in gpu:a100_1g.5gb; jobs with either will share it"
    ]


def test_several_files_of_one_mig_device() -> None:
    found = node(
        "GresTypes=gpu\nNodeName=n1 CPUs=1 Gres=gpu:1",
        gres="Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[21-22]",
    )
    assert [d.file for d in found.gres[0].devices] == [
        "/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21,/dev/nvidia-caps/nvidia-cap22"
    ]


def test_gpus_without_a_gres_conf_are_devices_and_other_gres_are_counted() -> None:
    found = node("GresTypes=gpu,bandwidth\nNodeName=n1 CPUs=1 Gres=gpu:h100:2,bandwidth:lustre:no_consume:4G")
    assert [(p.name, p.type, p.count, len(p.devices)) for p in found.gres] == [
        ("gpu", "h100", 2, 2),
        ("bandwidth", "lustre", 4 << 30, 0),
    ]


def test_untyped_devices_take_the_types_of_slurm_conf() -> None:
    found = node(
        "GresTypes=gpu\nNodeName=n1 CPUs=1 Gres=gpu:a:1,gpu:b:1", gres="NodeName=n1 Name=gpu File=/dev/nvidia[0,2]"
    )
    assert [(p.type, p.devices[0].file, p.devices[0].index) for p in found.gres] == [
        ("a", "/dev/nvidia0", 0),
        ("b", "/dev/nvidia2", 1),
    ]


def test_shards_are_divided_over_the_gpus_of_the_line() -> None:
    found = node(
        "GresTypes=gpu,shard\nNodeName=n1 CPUs=1 Gres=gpu:2,shard:16",
        gres="Name=gpu File=/dev/nvidia[0-1]\nName=shard Count=16 File=/dev/nvidia[0-1]",
    )
    assert [pool.parts for pool in found.gres if pool.name == "shard"] == [((0, 8), (1, 8))]


def parts(slurm_gres: str, gres: str) -> dict[str, tuple[tuple[int, int], ...]]:
    found = node(f"GresTypes=gpu,shard,mps\nNodeName=n1 CPUs=1 Gres={slurm_gres}", gres=gres)
    return {pool.name: pool.parts for pool in found.gres if pool.parts}


def test_a_count_without_files_is_divided_over_all_gpus() -> None:
    assert parts("gpu:h100:2,shard:h100:5,mps:200", "Name=gpu Type=h100 File=/dev/nvidia[0-1]\nName=mps Count=200") == {
        "shard": ((0, 2), (1, 3)),
        "mps": ((0, 100), (1, 100)),
    }


def test_gpus_may_have_different_numbers_of_parts() -> None:
    gres = "Name=gpu File=/dev/nvidia[0-2]\nName=mps Count=200 File=/dev/nvidia0\nName=mps Count=100 File=/dev/nvidia2"
    assert parts("gpu:3,mps:300", gres) == {"mps": ((0, 200), (2, 100))}


def test_files_of_detected_gpus_are_known_by_their_number() -> None:
    assert parts("gpu:2,shard:6", "AutoDetect=nvml\nName=shard Count=6 File=/dev/nvidia[0-1]") == {
        "shard": ((0, 3), (1, 3))
    }


def test_typed_shards_are_of_the_gpus_of_that_type() -> None:
    assert parts("gpu:a:1,gpu:b:2,shard:b:8", "") == {"shard": ((1, 4), (2, 4))}


@pytest.mark.parametrize(
    ("slurm_gres", "gres", "problem"),
    [
        ("shard:8", "", "shard is parts of GPUs, but the node has no gpu; add Gres=gpu:COUNT"),
        ("gpu:a:2,shard:b:8", "", "the node has no gpu:b"),
        (
            "gpu:1,shard:8",
            "Name=gpu File=/dev/nvidia0\nName=shard Count=8 File=/dev/nvidia7",
            "/dev/nvidia7 is not a GPU",
        ),
        ("gpu:1,shard:8", "Name=gpu File=/dev/nvidia0\nName=shard Count=4 File=/dev/nvidia0", "has 4 shard"),
    ],
)
def test_parts_of_gpus_that_are_not_there(slurm_gres: str, gres: str, problem: str) -> None:
    text = f"GresTypes=gpu,shard\nNodeName=n1 CPUs=1 Gres={slurm_gres}\nPartitionName=p Nodes=ALL"
    found = problems(text, gres=gres)
    assert any(problem in message for message in found), found


def test_blocks() -> None:
    topology = load(
        "NodeName=n[1-4]\nTopologyPlugin=topology/block",
        topology="BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\nBlockSizes=2,4",
    ).cluster.topology
    assert [b.nodes for b in topology.blocks] == [("n1", "n2"), ("n3", "n4")]
    assert topology.block_sizes == (2, 4)


def test_a_flat_plugin_does_not_use_topology_conf() -> None:
    assert (
        load("NodeName=n1\nTopologyPlugin=topology/flat", topology="SwitchName=s Nodes=n1").cluster.topology.switches
        == ()
    )


def test_settings() -> None:
    settings = load(
        "NodeName=n1\nRequeueExit=1-3,9\nOverTimeLimit=5\nSelectTypeParameters=CR_CPU\nProlog=/a,/b\nMaxJobCount=5\n"
        "JobRequeue=0\nEnforcePartLimits=yes\nJobAcctGatherFrequency=task=15,energy=30\nDefMemPerCPU=2000\nTaskProlog=/t\n"
    ).cluster.settings
    assert settings.requeue_exit == (1, 2, 3, 9)
    assert settings.over_time_limit_s == 300
    assert (settings.select_by_core, settings.memory_is_consumable) == (False, False)
    assert (settings.prolog, settings.task_prolog) == (("/a", "/b"), "/t")
    assert (settings.job_requeue, settings.enforce_part_limits) == (False, "ALL")
    assert (settings.account_gather_frequency_s, settings.default_memory_per_cpu_mib) == (15, 2000)


def test_defaults_are_slurms() -> None:
    settings = load("NodeName=n1").cluster.settings
    assert (settings.kill_wait_s, settings.min_job_age_s, settings.max_array_size) == (30, 300, 1001)
    assert (settings.select_by_core, settings.memory_is_consumable, settings.job_requeue) == (True, True, True)


def test_cgroup_conf() -> None:
    configuration = load("NodeName=n1", cgroup="constrainramspace=yes\nConstrainDevices=yes # GPUs")
    assert configuration.cgroup == {"ConstrainRAMSpace": "yes", "ConstrainDevices": "yes"}


@pytest.mark.parametrize(
    ("files", "warning"),
    [
        (
            {"slurm": "NodeName=n1\nPrologSlurmctld=/bin/check"},
            "slurm.conf:2: PrologSlurmctld=/bin/check is not applied: this program is never run",
        ),
        (
            {"slurm": "NodeName=n1 MemSpecLimit=2"},
            "slurm.conf:1: MemSpecLimit=2 is not applied: no memory is set aside for the system; set RealMemory lower "
            "instead",
        ),
        (
            {"slurm": "NodeName=n1\nPartitionName=p Nodes=n1 ExclusiveUser=YES"},
            "slurm.conf:2: ExclusiveUser=YES is not applied: jobs of several users may share a node",
        ),
        (
            {"slurm": "NodeName=n1\nPartitionName=p Nodes=n1 OverSubscribe=FORCE:2"},
            "slurm.conf:2: OverSubscribe=FORCE:2 is not applied: no two jobs share a CPU; OverSubscribe=EXCLUSIVE is "
            "applied",
        ),
        (
            {"slurm": "NodeName=n1\nSchedulerParameters=bf_continue,bf_intervall=3,max_rpc_cnt=4"},
            "slurm.conf:2: SchedulerParameters=bf_intervall=3 is no word of Slurm's; did you mean bf_interval?",
        ),
        (
            {"slurm": "NodeName=n1\nSchedulerParameters=kill_invalid_depend"},
            "slurm.conf:2: SchedulerParameters=kill_invalid_depend is no word of Slurm's; did you mean "
            "kill_invalid_depend of DependencyParameters?",
        ),
        (
            {"slurm": "NodeName=n1\nSchedulerParameters=bf_licenses,bf_window=60"},
            "slurm.conf:2: SchedulerParameters=bf_licenses is not applied: a job that waits for licences has no slot",
        ),
        (
            {"slurm": "NodeName=n1\nSlurmctldParameters=enable_configless,zzz"},
            "slurm.conf:2: SlurmctldParameters=zzz is no word of Slurm's",
        ),
        (
            {"slurm": "NodeName=n1\nLaunchParameters=use_interactive_step"},
            "slurm.conf:2: LaunchParameters=use_interactive_step is not applied: salloc starts a shell where it was "
            "typed",
        ),
        (
            {"slurm": "NodeName=n1\nPrivateData=job,usage"},
            "slurm.conf:2: PrivateData=job is no word of Slurm's; did you mean jobs?",
        ),
        ({"slurm": "NodeName=n1", "plugstack": "required x.so"}, "plugstack.conf: this file is not read by Bireme"),
        (
            {"slurm": "NodeName=n1", "cgroup": "ConstrainSwapSpace=yes"},
            "cgroup.conf:1: ConstrainSwapSpace=yes is not applied: swap is not limited",
        ),
        (
            {"slurm": "NodeName=n1\nKillWait=1\nKillWait=2"},
            "slurm.conf:3: KillWait is already set at slurm.conf:2; the latest value is used",
        ),
        (
            {"slurm": "NodeName=n[1-3]", "topology": "SwitchName=s Nodes=n[1-2]"},
            "topology.conf: no switch holds n3; jobs cannot span them and the others",
        ),
        (
            {"slurm": "GresTypes=gpu\nNodeName=n1", "gres": "Name=gpu File=/dev/nvidia0"},
            "gres.conf:1: no node of slurm.conf that this line describes has Gres=gpu; it is unused",
        ),
    ],
)
def test_warnings(files: dict[str, str], warning: str) -> None:
    assert [str(found) for found in load(**files).warnings] == [warning]


@pytest.mark.parametrize(
    ("files", "error"),
    [
        (
            {"slurm": "KilWait=3\nNodeName=n1"},
            "slurm.conf:1: Parsing error at unrecognized key: KilWait; did you mean KillWait?",
        ),
        (
            {"slurm": "PrologFlags=Aloc\nNodeName=n1"},
            "slurm.conf:1: PrologFlags=Aloc is no word of Slurm's; did you mean alloc?",
        ),
        (
            {"slurm": "SelectTypeParameters=CR_Corr_Memory\nNodeName=n1"},
            "slurm.conf:1: SelectTypeParameters=CR_Corr_Memory is no word of Slurm's; did you mean cr_core_memory?",
        ),
        (
            {"slurm": "TaskPlugin=task/afinity,task/cgroup\nNodeName=n1"},
            "slurm.conf:1: TaskPlugin=task/afinity is no word of Slurm's; did you mean task/affinity?",
        ),
        (
            {"slurm": "MaxTimee=3\nNodeName=n1"},
            "slurm.conf:1: Parsing error at unrecognized key: MaxTimee; did you mean MaxTime of a PartitionName line?",
        ),
        (
            {"slurm": "NodeName=n1 Grs=gpu:1"},
            "slurm.conf:1: Parsing error at unrecognized key: Grs of a NodeName line; did you mean Gres?",
        ),
        (
            {"slurm": "NodeName=n1\nPartitionName=p Nodes=n1 MaxPigsPerSty=8"},
            "slurm.conf:2: Parsing error at unrecognized key: MaxPigsPerSty of a PartitionName line",
        ),
        (
            {"slurm": "NodeName=n1", "cgroup": "Foo=1"},
            "cgroup.conf:1: Parsing error at unrecognized key: Foo of cgroup.conf",
        ),
        (
            {"slurm": "NodeName=n1\nKillWait=1 MinJobAge=2"},
            'slurm.conf:2: Parse error at "MinJobAge=2": write it on a line of its own, after KillWait=',
        ),
        (
            {"slurm": "NodeName=n1\nKillWait="},
            'slurm.conf:2: Parse error at "KillWait=": KillWait has no value; give it one, or leave it out',
        ),
        ({"slurm": "KillWait=3"}, "slurm.conf: no NodeName line defines a node; add at least one"),
        ({"slurm": "NodeName=n1\nNodeName=n[0-2]"}, "slurm.conf:2: node n1 is already defined at slurm.conf:1"),
        (
            {"slurm": "NodeName=n1\nPartitionName=p Nodes=n[1-2]"},
            "slurm.conf:2: partition p names node n2, which no NodeName line defines",
        ),
        (
            {"slurm": "NodeName=n1\nPartitionName=p Nodes=n1 Default=YES\nPartitionName=q Nodes=n1 Default=YES"},
            "slurm.conf:3: partition q is a second default; p at slurm.conf:2 is the default already",
        ),
        (
            {"slurm": "NodeName=n1\nPartitionName=p Nodes=n1 MaxTime=1:00:00 DefaultTime=2:00:00"},
            "slurm.conf:2: DefaultTime=2:00:00 is longer than MaxTime=1:00:00; shorten it",
        ),
        (
            {"slurm": "NodeName=n1 CPUs=10 Sockets=2 CoresPerSocket=4"},
            "slurm.conf:1: CPUs=10 is neither the sockets (2), the cores (8) nor the threads (8) that Boards, Sockets, "
            "CoresPerSocket and ThreadsPerCore give",
        ),
        (
            {"slurm": "NodeName=n1 Gres=gpu:2"},
            "slurm.conf:1: GRES gpu is not in GresTypes; add GresTypes=gpu to slurm.conf",
        ),
        (
            {"slurm": NODES, "gres": "Name=gpu Type=h100 File=/dev/nvidia[0-3]"},
            "gres.conf:1: node n1: gres.conf has 4 gpu:h100, slurm.conf has 2 (slurm.conf:3); "
            "Gres=gpu:h100:4 there would agree",
        ),
        (
            {"slurm": NODES, "gres": "Name=gpu Type=a100 File=/dev/nvidia[0-1]"},
            "gres.conf:1: node n1: gres.conf has 0 gpu:h100, slurm.conf has 2 (slurm.conf:3); "
            "Gres=gpu:a100:2 there would agree",
        ),
        (
            {"slurm": NODES, "gres": "NodeName=n[1-2] Name=gpu Type=h100 File=/dev/nvidia[0-1] Count=3"},
            "gres.conf:1: Count=3 but File names 2 devices; leave Count out",
        ),
        (
            {"slurm": NODES, "topology": "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n[1-2]"},
            "topology.conf:2: node n1 is under both a and b; keep one",
        ),
        (
            {"slurm": NODES, "topology": "SwitchName=a Nodes=n[1-3]"},
            "topology.conf:1: switch a names n3, which no NodeName line of slurm.conf defines",
        ),
        (
            {"slurm": NODES, "topology": "SwitchName=a Nodes=n[1-2]\nSwitchName=s Switches=a,b"},
            "topology.conf:2: switch s names switch b, which is not defined",
        ),
        (
            {"slurm": NODES, "topology": "SwitchName=l Nodes=n[1-2]\nSwitchName=a Switches=l\nSwitchName=b Switches=l"},
            "topology.conf:3: switch l is under both a and b; keep one",
        ),
        (
            {"slurm": NODES, "topology": "BlockName=a Nodes=n1\nBlockName=b Nodes=n[1-2]"},
            "topology.conf:2: node n1 is under both a and b; keep one",
        ),
        (
            {"slurm": NODES, "topology": "BlockName=a Nodes=n[1-2]\nBlockName=b Nodes=n9"},
            "topology.conf:2: block b names n9, which no NodeName line of slurm.conf defines",
        ),
        (
            {"slurm": NODES, "topology": "BlockName=a Nodes=n[1-2]\nBlockSizes=2,6"},
            "topology.conf:2: BlockSizes=2,6: 6 is not 2 times a power of two",
        ),
        (
            {"slurm": NODES, "topology": "BlockName=a Nodes=n[1-2]\nBlockSizes=0"},
            "topology.conf:2: BlockSizes=0: '0' is not a number above 0",
        ),
        (
            {"slurm": "NodeName=n1\nDownNodes=n2"},
            "slurm.conf:2: DownNodes names n2, which no NodeName line defines",
        ),
        ({"slurm": "NodeName=n1\nKillWait=soon"}, "slurm.conf:2: KillWait=soon: 'soon' is not a whole number"),
        (
            {"slurm": "NodeName=n[1-2] NodeAddr=a[1-3]"},
            "slurm.conf:1: NodeAddr names 3 hosts for 2 nodes; it must name as many",
        ),
        (
            {"slurm": "NodeName=n1\nDefMemPerCPU=1\nDefMemPerNode=2"},
            "slurm.conf:3: DefMemPerCPU and DefMemPerNode exclude each other; keep one",
        ),
    ],
)
def test_contradictions(files: dict[str, str], error: str) -> None:
    assert problems(**files) == [error]


def test_all_mistakes_are_told_at_once() -> None:
    assert len(problems("NodeName=n1\nKillWait=x\nMinJobAge=y\nPartitionName=p Nodes=z")) == 3


def test_a_missing_slurm_conf() -> None:
    with pytest.raises(ConfigurationError, match=r"^slurm\.conf: cannot be read: No such file or directory$"):
        parse_configuration({})


def test_switches_in_a_ring() -> None:
    found = problems(NODES, topology="SwitchName=l Nodes=n[1-2]\nSwitchName=a Switches=b\nSwitchName=b Switches=a")
    assert found == ["topology.conf:2: switch a is above itself; a tree has a root"]


_VALUES = st.sampled_from(
    [
        "0",
        "1",
        "8",
        "-1",
        "n1",
        "n[1-3]",
        "n[1-",
        "gpu",
        "gpu:2",
        "gpu:a:2",
        "YES",
        "no",
        "UNLIMITED",
        "1:00:00",
        "ALL",
        "x,y",
    ]
) | st.text("abn019[]-,:/=%", max_size=8)


def _lines(first: str, keys: frozenset[str]) -> st.SearchStrategy[str]:
    pair = st.tuples(st.sampled_from(sorted(keys)), _VALUES).map(lambda pair: f"{pair[0]}={pair[1]}")
    return st.tuples(_VALUES, st.lists(pair, max_size=4)).map(lambda line: f"{first}={line[0]} {' '.join(line[1])}")


_SLURM_LINES = _lines("NodeName", NODE_KEYS) | _lines("PartitionName", PARTITION_KEYS) | _lines("KillWait", GLOBAL_KEYS)


@given(
    st.lists(_SLURM_LINES, max_size=5),
    st.lists(_lines("Name", GRES_KEYS), max_size=3),
    st.lists(_lines("SwitchName", SWITCH_KEYS), max_size=3),
)
def test_any_files_give_a_cluster_or_diagnostics(slurm: list[str], gres: list[str], topology: list[str]) -> None:
    try:
        cluster = load("\n".join(slurm), gres="\n".join(gres), topology="\n".join(topology)).cluster
    except ConfigurationError:
        return
    names = {node.name for node in cluster.nodes}
    assert all(set(partition.nodes) <= names for partition in cluster.partitions)
    assert sum(partition.default for partition in cluster.partitions) <= 1
    for pool in (pool for node in cluster.nodes for pool in node.gres if pool.devices):
        assert len(pool.devices) == pool.count


def test_nodes_are_in_the_order_of_their_names() -> None:
    text = "NodeName=n[1-2],n10,n9 CPUs=1\nNodeName=c1 CPUs=1\nPartitionName=p Nodes=ALL\n"
    cluster = parse_configuration({"slurm.conf": text}).cluster
    assert [node.name for node in cluster.nodes] == ["c1", "n1", "n2", "n9", "n10"]


SHARED = "GresTypes=gpu,mps,shard\nNodeName=n1 CPUs=8 Gres=gpu:2,mps:200,shard:8\n"


@pytest.mark.parametrize(
    ("lines", "mps", "shard"),
    [
        ("", True, False),
        ("Name=mps Count=200 Flags=all_sharing", False, False),
        ("Name=shard Count=8 Flags=one_sharing", True, True),
    ],
)
def test_mps_shares_one_gpu_of_a_node_unless_it_says_otherwise(lines: str, mps: bool, shard: bool) -> None:
    pools = {pool.name: pool.one_sharing for pool in load(SHARED, gres=lines).cluster.nodes[0].gres}
    assert pools == {"gpu": False, "mps": mps, "shard": shard}


def test_one_and_all_sharing_exclude_each_other() -> None:
    lines = "Name=mps Count=100 Flags=one_sharing\nName=mps Count=100 Flags=all_sharing"
    assert any("exclude each other" in problem for problem in problems(SHARED, gres=lines))


def test_a_cluster_that_knows_its_own_nodes_needs_no_line_for_them() -> None:
    text = "ClusterName=k\nKillWait=3\nPartitionName=main Nodes=all Default=YES\nPartitionName=few Nodes=gke-[1-2]\n"
    read = load_rules("slurm.conf", {"slurm.conf": text, "cgroup.conf": ""}.__getitem__)
    assert (read.cluster.nodes, read.cluster.settings.kill_wait_s) == ((), 3)
    assert [partition.nodes for partition in read.cluster.partitions] == [("ALL",), ("gke-1", "gke-2")]
    with pytest.raises(ConfigurationError, match="no NodeName line defines a node"):
        load(text.replace("gke-[1-2]", "ALL"))


@pytest.mark.parametrize("text", ["KillWait = 7", "KillWait =7", "KillWait= 7", 'KillWait = "7"', "killwait\t=\t7"])
def test_spaces_around_the_equals_sign_are_none_of_the_value(text: str) -> None:
    assert load(f"NodeName = n1 CPUs = 4\n{text}\n").cluster.settings.kill_wait_s == 7


def test_a_value_with_an_equals_sign_of_its_own_may_come_after_spaces() -> None:
    cluster = load("NodeName=n1\nSchedulerParameters = bf_interval=7,bf_window=60\n").cluster
    assert cluster.raw["SchedulerParameters"] == "bf_interval=7,bf_window=60"
    assert cluster.settings.policy.interval_s == 7


@pytest.mark.parametrize("state", ["CLOUD", "POWERED_DOWN", "EXTERNAL"])
def test_nodes_that_a_program_would_have_to_start_are_down(state: str) -> None:
    configuration = load(f"NodeName=n[1-2] State={state}\nResumeProgram=/bin/start")
    assert {node.initial_state for node in configuration.cluster.nodes} == {"DOWN"}
    assert configuration.cluster.nodes[0].reason == f"State={state}: Bireme does not start nodes"
    said = [str(warning) for warning in configuration.warnings]
    assert any(f"State={state} of n1,n2 is not applied" in text for text in said)
    assert any("ResumeProgram=/bin/start is not applied" in text for text in said)


def test_keys_that_ask_for_what_is_so_anyway_are_no_matter() -> None:
    text = "NodeName=n1\nSwitchType=switch/none\nWaitTime=0\nPrEpPlugins=prep/script\nSlurmctldPort=7000\n"
    assert load(text).warnings == ()
