#!/bin/bash
#SBATCH --job-name=wide
#SBATCH --nodes=64
#SBATCH --gpus-per-node=8
#SBATCH --switches=4
srun ./solver
