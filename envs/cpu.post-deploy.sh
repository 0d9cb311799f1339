# Snakemake runs it in the new environment, in the working directory: the checkout.
set -eu
test -f kernels/pyproject.toml || { echo "run Snakemake in the checkout of ampgnn: no kernels/ here"; exit 1; }
python -m pip install --no-deps ./kernels
python -m pip install --no-deps --editable .
