#!/bin/bash
#SBATCH --job-name=long
#SBATCH --gpus-per-node=4
#SBATCH --nodes=1
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
trap 'touch stop; wait' TERM
python train.py & wait
