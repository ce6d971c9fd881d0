"""The standard streams of steps, from the pipes of tasks to `srun` and `sattach`."""
