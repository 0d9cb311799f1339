import sys

from snakemake.exceptions import WorkflowError

from ampgnn import matrix
from ampgnn.config import dump
from ampgnn.environment import sources_digest
from ampgnn.errors import UserError

try:
    matrix.validate(config, workflow.source_path("../schemas/config.schema.yaml"))
    CONFIGS = {f"{c.dataset}/{c.id}": c for c in matrix.expand(config)}
except UserError as problem:
    raise WorkflowError(str(problem))

# What a stage's command line begins with; the one place for a runner in a container.
AMPGNN = f"{sys.executable} -m ampgnn"

REPORT = ["results/report/index.html", "results/report/report.md"]
RESULTS = [f"results/runs/{name}/result.json" for name in CONFIGS]
DATASETS = sorted({c.dataset for c in CONFIGS.values()})
RECORDS = [f"results/data/{key}.json" for key in DATASETS]

# `--cores` does not limit GPUs: one job at a time, unless --resources gpu=N says otherwise.
workflow.global_resources.setdefault("gpu", 1)


wildcard_constraints:
    dataset="|".join(DATASETS) or "none",
    id="|".join({c.id for c in CONFIGS.values()}) or "none",


def config_of(wildcards):
    return CONFIGS[f"{wildcards.dataset}/{wildcards.id}"]


def dataset_options(wildcards):
    """The arguments of `ampgnn data` for a key of `datasets`."""
    options = config["datasets"][wildcards.dataset] or {}
    scale = f" --scale {options['scale']}" if "scale" in options else ""
    return options.get("name", wildcards.dataset) + scale


def say_what_came_out():
    from ampgnn.report import summary

    print("\n".join(summary(RESULTS, REPORT)), file=sys.stderr)
