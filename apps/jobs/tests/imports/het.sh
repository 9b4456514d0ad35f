#!/bin/bash
#SBATCH --job-name=het
#SBATCH --nodes=1 --cpus-per-task=32
#SBATCH hetjob
#SBATCH --nodes=4 --gpus-per-node=8
srun --het-group=0 ./head : --het-group=1 ./worker
