#!/bin/bash
#SBATCH --job-name=notebook
#SBATCH --gres=mps:25
jupyter nbconvert --execute a.ipynb
