#!/bin/bash
#SBATCH --job-name=mixed
#SBATCH --gres=gpu:a100:2,gpu:h100:2
python train.py
