#!/bin/bash
#SBATCH --job-name=chat
#SBATCH --gpus=1
#SBATCH --cpus-per-task=2
#SBATCH --output=chat-%j.out
#BIREME --replicas=0-1 --startup-timeout=10m --stable-window=6s --down-delay=5s --idle=5s

# An OpenAI-style server of the model in $MODEL (tiny_model.py makes one). `bireme serve chat.sh` keeps it up and gives
# it an address; `sbatch --export=ALL,PORT=8000 chat.sh` runs it once, on any Slurm.
exec "${BIREME_TEST_PYTHON:-python3}" -m transformers.cli.transformers serve "$MODEL" --host 127.0.0.1 --port "$PORT"
