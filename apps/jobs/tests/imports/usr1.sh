#!/bin/bash
#SBATCH --job-name=lightning
#SBATCH --gres=gpu:2
#SBATCH --signal=SIGUSR1@90
#SBATCH --no-requeue
python train.py
