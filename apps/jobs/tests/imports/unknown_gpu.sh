#!/bin/bash
#SBATCH --job-name=old
#SBATCH --gres=gpu:v100:2
python train.py
