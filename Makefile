# The two commands: `make reproduce` and `make test`. Each sets itself up in .venv.
PYTHON ?= python3.11
CORES ?= $(shell nproc)
CONFIG ?= workflow/config/quick.yaml
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
export MLFLOW_DISABLE_TELEMETRY ?= true

KERNEL_SOURCES := $(shell find kernels -type f \( -path '*/src/*' -o -path '*/ampgnn_kernels/*.py' \) -o -path 'kernels/CMakeLists.txt' -o -path 'kernels/pyproject.toml')

.PHONY: reproduce test report ui doctor lint format lock setup clean

reproduce: setup  ## fetch the datasets, run the matrix, write results/report/index.html
	snakemake --cores $(CORES) --configfile $(CONFIG)

test: export OMP_WAIT_POLICY ?= passive  # spinning threads and other jobs on the machine would starve each other
test: setup  ## every test; AMPGNN_DATA_MIRROR names a folder or address with the Planetoid files
	python -m pytest

report:  ## the report again, from the runs there are
	ampgnn report

ui:  ## MLflow's pages on http://127.0.0.1:5000
	MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow server --host 127.0.0.1 --port 5000 --workers 1 \
	  --backend-store-uri "sqlite:///$(CURDIR)/results/mlflow.db" --artifacts-destination "$(CURDIR)/results/mlartifacts"

doctor: setup  ## what this machine can do, and why not
	ampgnn doctor

lint: setup
	ruff check . && ruff format --check . && snakemake --lint --configfile $(CONFIG)

format: setup
	ruff check --fix . && ruff format .

lock: $(VENV)/created  ## resolve envs/cpu.in anew
	pip install --upgrade -r envs/cpu.in
	(echo '# Python 3.11, Linux, CPU. Written by `make lock` from cpu.in.'; \
	 pip freeze --exclude ampgnn --exclude ampgnn-kernels --exclude triton | sed 's/+cpu$$//') > envs/cpu.txt

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

clean:  ## what the pipeline and the build made; .venv stays
	rm -rf results .snakemake kernels/build build *.egg-info
