#!/bin/bash
#SBATCH --job-name=again
#SBATCH --array=3,7,19
#SBATCH --gpus=1
./again.sh ${SLURM_ARRAY_TASK_ID}
