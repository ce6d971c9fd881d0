"""Slurm's configuration files: slurm.conf, gres.conf, topology.conf, cgroup.conf, to one `ClusterConfig`, and back to
what `scontrol show config` prints. Pure: files are read through a callable. Start at `loading.load_configuration`."""
