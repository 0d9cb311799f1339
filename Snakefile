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


onstart:
    # Snakemake's limit on job starts wakes its scheduler once a second for each job started so far, which in a long
    # run takes most of a core from the training that is timed on the same machine.
    if workflow.local_exec:
        workflow.scheduler.job_rate_limiter = None


onsuccess:
    say_what_came_out()


onerror:
    say_what_came_out()
