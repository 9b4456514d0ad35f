#!/bin/sh
#SBATCH -J resnet -A vision -p gpu
#SBATCH -N2 -t 90
#SBATCH -G 8 -c4
#SBATCH -o out.txt
python train.py
