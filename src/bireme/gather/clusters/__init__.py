"""Whose processes they are on a node of a cluster: of Slurm's jobs or Kubernetes' pods, by cgroup or slurmd."""
