#!/bin/bash
#SBATCH --job-name=uneven
#SBATCH --nodes=3
#SBATCH --gpus=8
python train.py
