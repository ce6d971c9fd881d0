"""Every option of sbatch, srun and salloc as data, and what `--help` says of them."""
