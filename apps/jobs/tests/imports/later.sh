#!/bin/bash
#SBATCH --job-name=night
#SBATCH --gpus=4
#SBATCH --begin=2026-03-02T22:00:00
#SBATCH --deadline=2026-03-03T08:00:00
#SBATCH --reservation=maintenance-test
#SBATCH --nice=100 --priority=50
python night.py
