#!/usr/bin/env python3
#SBATCH --job-name=direct
#SBATCH --gpus=1
import os
print(os.environ["SLURM_JOB_ID"])
