#!/bin/bash
#SBATCH --job-name=gang
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=5:00
#SBATCH --output=gang-%j.out

# The way every multi-node training script finds its rendezvous.
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
here=$(dirname "$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=//p')")

echo "gang of $SLURM_NTASKS tasks on $SLURM_JOB_NODELIST, rendezvous at $MASTER_ADDR:$MASTER_PORT"
srun --gpus-per-task=1 python3 "$here/barrier.py"
