#!/bin/bash
#SBATCH --job-name=slip
#SBATCH --gpu=2
#SBATCH --tmie=30
#SBATCH --time=tomorrow
python train.py
