#!/bin/bash
#SBATCH --job-name=close
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
#SBATCH --switches=1@00:10:00
#SBATCH --exclusive
mpirun ./solver
