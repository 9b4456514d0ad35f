#!/bin/bash
#SBATCH --job-name=evaluate
#SBATCH --dependency=afterok:101:102
#SBATCH --gpus=1
python evaluate.py
