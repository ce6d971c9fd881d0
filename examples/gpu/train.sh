#!/bin/bash
#SBATCH --job-name=torchrun
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=10:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=train-%j.out

# torchrun under srun: one launcher per node, one worker per GPU. Arguments go to train.py, which stands beside this
# script: `sbatch train.sh --steps 100`. Stopped and requeued, it goes on from its checkpoint.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
own_address=()
if ! getent hosts "$MASTER_ADDR" > /dev/null; then # a machine that cannot look up its own name
  MASTER_ADDR=127.0.0.1
  own_address=(--local_addr "$MASTER_ADDR")
fi

echo "start ${SLURM_RESTART_COUNT:-0} on $SLURM_JOB_NODELIST, GPUs $CUDA_VISIBLE_DEVICES, meeting at $MASTER_ADDR:$MASTER_PORT"
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" "${BIREME_TEST_PYTHON:-python3}" -m torch.distributed.run \
  --nnodes="$SLURM_NNODES" --nproc_per_node="$SLURM_GPUS_ON_NODE" "${own_address[@]}" \
  --rdzv_id="$SLURM_JOB_ID" --rdzv_backend=c10d --rdzv_endpoint="$MASTER_ADDR:$MASTER_PORT" \
  "$SLURM_SUBMIT_DIR/train.py" "$@"
