#!/bin/bash
#SBATCH --job-name=told
#SBATCH --mail-type=BEGIN,END,FAIL
#SBATCH --mail-user=someone@example.org
#SBATCH --gpus=1
python train.py
