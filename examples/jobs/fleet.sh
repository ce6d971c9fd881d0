#!/bin/bash
#SBATCH --job-name=fleet
#SBATCH --nodes=8 --exclusive --gpus-per-node=8
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --time=10:00
#SBATCH --output=fleet-%j.out

# Training on every GPU there is, with a checkpoint after each step. When a service needs a GPU, this job is asked to
# end (SIGTERM), goes back into the queue, and goes on from its checkpoint when there is room again.
checkpoint="$SLURM_SUBMIT_DIR/checkpoint-$SLURM_JOB_ID"
step=$(cat "$checkpoint" 2>/dev/null || echo 0)
echo "start ${SLURM_RESTART_COUNT:-0}: $SLURM_JOB_NUM_NODES nodes, resuming at step $step"
trap 'echo "making way after step $step"; exit 0' TERM
while ((step < 25)); do
  sleep 0.2 & wait $!
  step=$((step + 1))
  echo "$step" > "$checkpoint"
done
echo "done: $step steps in $((${SLURM_RESTART_COUNT:-0} + 1)) starts"
