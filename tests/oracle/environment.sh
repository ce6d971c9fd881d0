#!/bin/bash
# Writes the variables of the script and of every task of a step to files in the working folder.
part=${SLURM_ARRAY_TASK_ID:-0}.${SLURM_HET_SIZE:-1}
env -0 > "batch.$part.env"
part=$part srun <STEP> /bin/bash -c 'env -0 > "task.$part.$SLURM_PROCID.env"'
