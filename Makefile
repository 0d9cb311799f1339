# The two commands: `make reproduce` and `make test`. Each sets itself up in .venv.
PYTHON ?= python3.11
CORES ?= $(shell nproc)
CONFIG ?= workflow/config/quick.yaml
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
export MLFLOW_DISABLE_TELEMETRY ?= true

KERNEL_SOURCES := $(shell find kernels -type f \( -path '*/src/*' -o -path '*/ampgnn_kernels/*.py' \) -o -path 'kernels/CMakeLists.txt' -o -path 'kernels/pyproject.toml')

.PHONY: reproduce test test-dgl-2.1 test-containers report ui doctor lint format lock setup clean

reproduce: setup  ## fetch the datasets, run the matrix, write results/report/index.html
	snakemake --cores $(CORES) --configfile $(CONFIG)

test: export OMP_WAIT_POLICY ?= passive  # spinning threads and other jobs on the machine would starve each other
test: setup  ## every test; AMPGNN_DATA_MIRROR names a folder or address with the Planetoid files
	python -m pytest

test-dgl-2.1: export OMP_WAIT_POLICY ?= passive
test-dgl-2.1: $(VENV)/dgl-2.1.0/installed  ## the tests that face DGL, on DGL 2.1.0 beside everything else of .venv
	$(VENV)/dgl-2.1.0/bin/python -m pytest tests/dgl tests/nn -k "not compile"

test-containers: setup  ## the images with a real Docker Engine, which it installs (root)
	tests/containers/run.sh

report:  ## the report again, from the runs there are
	ampgnn report

ui:  ## MLflow's pages on http://127.0.0.1:5000
	MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow server --host 127.0.0.1 --port 5000 --workers 1 \
	  --backend-store-uri "sqlite:///$(CURDIR)/results/mlflow.db" --artifacts-destination "$(CURDIR)/results/mlartifacts"

doctor: setup  ## what this machine can do, and why not
	ampgnn doctor

lint: setup
	ruff check . && ruff format --check . && hadolint docker/*.Dockerfile && snakemake --lint --configfile $(CONFIG)

format: setup
	ruff check --fix . && ruff format .

UV_LOCK = uv pip compile --quiet --generate-hashes --no-annotate --no-header --python-version 3.11 \
  --python-platform x86_64-manylinux_2_28 --constraint envs/cpu.txt
lock: $(VENV)/created  ## resolve envs/*.in anew; TORCH_WHEELS is a folder with torch's CPU wheel, if its index is out of reach
	pip install --upgrade -r envs/cpu.in uv
	(echo '# Python 3.11, Linux, CPU. Written by `make lock` from cpu.in.'; \
	 pip freeze --exclude ampgnn --exclude ampgnn-kernels --exclude uv --exclude triton | sed 's/+cpu$$//') > envs/cpu.txt
	$(UV_LOCK) envs/build.in -o envs/build.lock
	$(UV_LOCK) envs/image.in -o envs/cpu.lock $(if $(TORCH_WHEELS),--find-links $(TORCH_WHEELS),--torch-backend cpu)
	$(UV_LOCK) envs/cuda.in -o envs/cuda.lock
	sh envs/conda.sh envs/cpu.lock "For --sdm conda, on the CPU. torch is PyPI's build here, which also runs without a GPU." > envs/cpu.yaml
	sh envs/conda.sh envs/cuda.lock "For --sdm conda, on NVIDIA GPUs." > envs/cuda.yaml

setup: $(VENV)/installed

$(VENV)/created:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/requirements: envs/cpu.txt envs/test.txt | $(VENV)/created
	pip install --quiet -r envs/cpu.txt -r envs/test.txt
	touch $@

$(VENV)/kernels: $(KERNEL_SOURCES) $(VENV)/requirements
	pip install --quiet --no-deps ./kernels
	touch $@

$(VENV)/installed: pyproject.toml $(VENV)/kernels
	pip install --quiet --no-deps --editable .
	touch $@

$(VENV)/dgl-2.1.0/installed: $(VENV)/installed
	python -m venv --without-pip $(VENV)/dgl-2.1.0
	site=$$($(VENV)/dgl-2.1.0/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	python -c 'import sysconfig; print("import site; site.addsitedir({!r})".format(sysconfig.get_path("purelib")))' \
	  > $$site/beside.pth && \
	pip install --quiet --no-deps --target $$site dgl==2.1.0
	touch $@

clean:  ## what the pipeline and the build made; .venv stays
	rm -rf results .snakemake kernels/build build *.egg-info
