#!/bin/sh
# Compile heat.c into FOLDER and run it: heat.sh FOLDER SIZE SWEEPS REPORTS
set -eu
folder=$1
shift
cc -O2 -fopenmp "$(dirname "$0")/heat.c" -o "$folder/heat" -lm
exec "$folder/heat" "$@"
