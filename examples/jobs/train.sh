#!/bin/bash
#SBATCH --job-name=train
#SBATCH --gpus=2
#SBATCH --time=2:00
#SBATCH --output=chain-%j.out

echo "train: reads $(cat "$SLURM_SUBMIT_DIR/dataset.txt") with GPUs $CUDA_VISIBLE_DEVICES"
