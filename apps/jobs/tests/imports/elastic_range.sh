#!/bin/bash
#SBATCH --job-name=range
#SBATCH --nodes=2-4
#SBATCH --gres=gpu:8
torchrun train.py
