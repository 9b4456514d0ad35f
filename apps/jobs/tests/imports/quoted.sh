#!/bin/bash
# A comment before the options.

#SBATCH --job-name="two words"   # the name
##SBATCH --gpus=9
# SBATCH --gpus=7
#SBATCH --gpus 1
#SBATCH --chdir='/data/my project'
#SBATCH --export=ALL,OMP_NUM_THREADS=4,"NAME=a,b"
#SBATCH --hold
python train.py
#SBATCH --gpus=5
