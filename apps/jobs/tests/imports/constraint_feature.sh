#!/bin/bash
#SBATCH --job-name=fast-net
#SBATCH --gpus=2
#SBATCH -C "h100&ib"
python train.py
