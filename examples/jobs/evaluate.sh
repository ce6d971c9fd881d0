#!/bin/bash
#SBATCH --job-name=evaluate
#SBATCH --ntasks=2
#SBATCH --time=2:00
#SBATCH --output=chain-%j.out

srun --label bash -c 'echo "evaluate: shard $SLURM_PROCID of $SLURM_NTASKS is fine"'
