#!/bin/bash
#SBATCH --job-name=clean-up
#SBATCH --dependency=afterany:101
rm -rf scratch
