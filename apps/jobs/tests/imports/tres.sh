#!/bin/bash
#SBATCH --job-name=tres
#SBATCH --nodes=3
#SBATCH --tres-per-node=gres/gpu:h200:4
torchrun train.py
