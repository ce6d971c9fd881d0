#!/bin/bash
#SBATCH --job-name=sweep
#SBATCH --array=0-11%4        # twelve settings, four at a time
#SBATCH --gpus=1
#SBATCH --time=2:00
#SBATCH --output=sweep-%A_%a.out

rates=(1e-1 3e-2 1e-2 3e-3 1e-3 3e-4 1e-4 3e-5 1e-5 3e-6 1e-6 3e-7)
echo "task $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT: learning rate ${rates[$SLURM_ARRAY_TASK_ID]} on GPU $CUDA_VISIBLE_DEVICES of $(hostname)"
sleep 0.5
