#!/bin/bash
# Submit the array, and the job that merges its results. Arguments go to the array: ./submit.sh --array=10-12
set -euo pipefail
cd "$(dirname "$0")"
array=$(sbatch --parsable "$@" seed.sbatch)
sbatch --dependency="afterok:${array%%;*}" merge.sbatch
