#!/bin/sh
# Removes what no stage runs from the packages in a folder: slim.sh SITE_PACKAGES
set -eu
cd "$1"

# What compiles against torch and pyarrow, and torch's own tests. torch_shm_manager serves DataLoader's workers.
rm -rf torch/include torch/share torch/test pyarrow/include pyarrow/src
find torch/bin -type f ! -name torch_shm_manager -delete
# Arrow's servers and query plans.
rm -f pyarrow/libarrow_flight.so* pyarrow/libarrow_substrait.so* pyarrow/libarrow_python_flight.so*
# numpy.testing and torch.testing are imported by others; these are not.
for package in fontTools matplotlib networkx pandas pyarrow scipy sklearn sympy; do
  find "$package" -type d -name tests -prune -exec rm -rf {} +
done
