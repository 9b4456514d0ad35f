#!/bin/bash
#SBATCH --job-name=either
#SBATCH --gpus=2
#SBATCH --constraint="a100|h100"
python train.py
