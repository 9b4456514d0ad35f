#!/bin/bash
#SBATCH --job-name=by-gpu
#SBATCH --nodes=2
#SBATCH --gpus=16
#SBATCH --cpus-per-gpu=6
#SBATCH --mem-per-gpu=80G
torchrun train.py
