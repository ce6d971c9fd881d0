#!/bin/bash
#SBATCH --job-name=resilient
#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=8
#SBATCH --time=10:00
#SBATCH --open-mode=append
#SBATCH --output=resilient-%j.out
#BIREME --heal=restart --checkpoint=checkpoints-%j

# Started again it goes on from $BIREME_CHECKPOINT: the newest checkpoint that is whole.
here=$(dirname "$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=//p')")
echo "start ${SLURM_RESTART_COUNT:-0} on $SLURM_JOB_NODELIST, from ${BIREME_CHECKPOINT:-the beginning}"
srun python3 "$here/resilient.py" "checkpoints-$SLURM_JOB_ID" "${BIREME_CHECKPOINT:-}"
