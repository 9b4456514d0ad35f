#!/bin/bash
#SBATCH --job-name=prepare
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=32768
#SBATCH --time=30:00
python prepare.py
