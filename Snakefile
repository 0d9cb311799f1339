# Validates the configuration, includes the rules, names the targets.
from snakemake.utils import min_version

min_version("9.0")


configfile: workflow.source_path("workflow/config/quick.yaml")


# Used with --sdm apptainer alone.
container: config["container"]


include: "workflow/rules/common.smk"
include: "workflow/rules/images.smk"
include: "workflow/rules/datasets.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/report.smk"


localrules:
    all,
    data,
    runs,


rule all:
    input:
        REPORT,


rule data:
    input:
        RECORDS,


rule runs:
    input:
        RESULTS,


onsuccess:
    say_what_came_out()


onerror:
    say_what_came_out()
