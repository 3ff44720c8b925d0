#!/usr/bin/env bash
# Horovod is built against the TensorFlow and the Open MPI that this environment holds.
set -euo pipefail
export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1
export HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1
export OPAL_PREFIX="$CONDA_PREFIX"
pip install "setuptools<80" wheel
pip install --no-build-isolation horovod==0.28.1
