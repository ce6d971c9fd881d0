"""What `sbatch`, `srun` and `salloc` share: who submits, from which environment, and how it is sent."""
