#!/bin/bash
#SBATCH --job-name=resume
#SBATCH --gpus=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --time=5:00
#SBATCH --output=resume-%j.out

# Ten steps of work with a checkpoint after each. At the fifth, the first run asks to be put back into the queue,
# as a scheduler does to it when the node is needed; the second run goes on where the first one stopped.
checkpoint="$SLURM_SUBMIT_DIR/checkpoint-$SLURM_JOB_ID"
step=$(cat "$checkpoint" 2>/dev/null || echo 0)
echo "start ${SLURM_RESTART_COUNT:-0}: resuming at step $step"
while ((step < 10)); do
  sleep 0.2
  step=$((step + 1))
  echo "$step" > "$checkpoint"
  if ((step == 5)) && [[ -z $SLURM_RESTART_COUNT ]]; then
    scontrol requeue "$SLURM_JOB_ID"
    sleep 30
  fi
done
echo "done: $step steps in $((${SLURM_RESTART_COUNT:-0} + 1)) starts"
