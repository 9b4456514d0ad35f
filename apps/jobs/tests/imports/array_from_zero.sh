#!/bin/bash
#SBATCH --job-name=sweep
#SBATCH --array=0-15%4
#SBATCH --gres=gpu:a100:1
#SBATCH --time=60
python sweep.py --index $SLURM_ARRAY_TASK_ID
