#!/bin/bash
#SBATCH --job-name=hello
#SBATCH --gpus=1
#SBATCH --output=hello-%j.out
#BIREME --replicas=0-2 --health=/ --stable-window=6s --down-delay=1s --idle=1s

# The smallest service: it says on which GPU it is. `bireme serve hello.sh` keeps it up while people ask, and gives the
# GPU back when nobody does. A real one runs vLLM, or any server that listens on $PORT, in its place.
cd "$(mktemp -d)" && trap 'rm -rf "$PWD"' EXIT
echo "replica $BIREME_REPLICA of $BIREME_SERVICE on $SLURMD_NODENAME, GPU $CUDA_VISIBLE_DEVICES" > index.html
"${BIREME_PYTHON:-python3}" -m http.server "$PORT"
