"""Commands that stay at the terminal while something runs: `srun`, `salloc`, `sattach`."""
