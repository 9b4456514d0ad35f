#!/usr/bin/env bash
#SBATCH -J folds
#SBATCH -a 10-50:10
#SBATCH --gpus=1
./fold.sh "$SLURM_ARRAY_TASK_ID"
