#!/usr/bin/env bash
# Checks, times and trains on this machine's GPU in under 5 minutes; builds nothing.
# AMPGNN_GPU_SCRIPT_DRY=1: the same steps on the CPU at tiny size. PYTHON: the interpreter that has ampgnn's packages.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH="$PWD:$PWD/kernels/tests${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python}" tests/gpu/check.py "$@"
