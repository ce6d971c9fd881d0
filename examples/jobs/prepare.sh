#!/bin/bash
#SBATCH --job-name=prepare
#SBATCH --ntasks=1
#SBATCH --time=2:00
#SBATCH --output=chain-%j.out

echo "prepare: data is ready"
echo "tokens" > "$SLURM_SUBMIT_DIR/dataset.txt"
