#!/bin/sh
# Writes a conda environment with the pins of a lock file: conda.sh LOCK NOTE > FILE.yaml
set -eu
cat <<HEAD
# $2
# Written by \`make lock\` from $(basename "$1"). The project itself is installed by the post-deploy script.
channels: [conda-forge]
dependencies:
  - python=3.11
  - cxx-compiler
  - pip
  - pip:
HEAD
# A local version, such as torch's +cpu, is on PyTorch's own index alone.
sed -n 's/^\([A-Za-z0-9._-]*==[^ +]*\).*/      - \1/p' "$1"
