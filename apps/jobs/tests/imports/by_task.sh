#!/bin/bash
#SBATCH --job-name=tasks
#SBATCH --ntasks=6
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=4
#SBATCH --mem-per-cpu=2G
srun ./worker
