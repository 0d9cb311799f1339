import shlex
import sys

from snakemake.exceptions import WorkflowError

from ampgnn import containers, matrix
from ampgnn.config import dump
from ampgnn.environment import sources_digest
from ampgnn.errors import UserError

try:
    matrix.validate(config, workflow.source_path("../schemas/config.schema.yaml"))
    CONFIGS = {f"{c.dataset}/{c.id}": c for c in matrix.expand(config)}
except UserError as problem:
    raise WorkflowError(str(problem))

RUNNER = config["runner"]
HOST = f"{sys.executable} -m ampgnn"
BUILD_ARGS = config["build_args"]
# The image of a device; without a GPU, that of the CPU, where a run on "cuda" is recorded as "not run".
IMAGE = {device: f"results/images/{device if containers.has_gpu() else 'cpu'}.json" for device in containers.DEVICES}
# With --sdm the software comes from elsewhere.
SDM = bool(workflow.deployment_settings.deployment_method)
IMAGES = [] if SDM else sorted({IMAGE[c.device] for c in CONFIGS.values()} | {IMAGE["cpu"]})

REPORT = ["results/report/index.html", "results/report/report.md"]
RESULTS = [f"results/runs/{name}/result.json" for name in CONFIGS]
DATASETS = sorted({c.dataset for c in CONFIGS.values()})
RECORDS = [f"results/data/{key}.json" for key in DATASETS]

# `--cores` does not limit GPUs: one job at a time, unless --resources gpu=N says otherwise.
workflow.global_resources.setdefault("gpu", 1)


wildcard_constraints:
    dataset="|".join(DATASETS) or "none",
    id="|".join({c.id for c in CONFIGS.values()}) or "none",
    device="|".join(containers.DEVICES),


def image_record(device="cpu"):
    """The record that a stage runs by, if it runs in an image."""
    return [IMAGE[device]] if RUNNER == "docker" and not SDM else []


def stage_command(device="cpu"):
    """What a stage's command line begins with: on the host, in an image, or where Snakemake's --sdm puts it."""
    if SDM:
        return "python -m ampgnn"
    # The container ends with the job's shell and with Snakemake, even if they are killed.
    return f"{HOST} image run --until $$ --until $PPID {IMAGE[device]}" if image_record(device) else HOST


def code_digest(*modules, device="cpu"):
    """What a stage's results depend on beside its files: sources, and in an image what it was built from."""
    digest = sources_digest(*modules)
    return f"{digest}-{containers.environment_digest(device)}" if image_record(device) else digest


def config_of(wildcards):
    return CONFIGS[f"{wildcards.dataset}/{wildcards.id}"]


def build_arguments(device):
    """The options of `ampgnn image build` for the Dockerfile's arguments."""
    return " ".join(f"--build-arg {shlex.quote(f'{k}={v}')}" for k, v in BUILD_ARGS.get(device, {}).items())


def dataset_options(wildcards):
    """The arguments of `ampgnn data` for a key of `datasets`."""
    options = config["datasets"][wildcards.dataset] or {}
    scale = f" --scale {options['scale']}" if "scale" in options else ""
    return options.get("name", wildcards.dataset) + scale


def say_what_came_out():
    from ampgnn.report import summary

    print("\n".join(summary(RESULTS, REPORT, IMAGES)), file=sys.stderr)
