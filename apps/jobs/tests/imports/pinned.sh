#!/bin/bash
#SBATCH --job-name=pinned
#SBATCH --gpus=1
#SBATCH --nodelist=node[01-04]
#SBATCH --exclude=node07
#SBATCH --licenses=matlab:2
matlab -r run
