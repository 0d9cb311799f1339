localrules:
    configure,
    track_init,


rule track_init:
    output:
        touch("results/mlflow.ready"),
    log:
        "results/logs/track_init.log",
    params:
        ampgnn=AMPGNN,
    message:
        "MLflow store"
    shell:
        "{params.ampgnn} track-init 2>&1 | tee {log}"


rule configure:
    output:
        "results/configs/{dataset}/{id}.yaml",
    log:
        "results/logs/configure/{dataset}/{id}.log",
    params:
        text=lambda wildcards: dump(config_of(wildcards)),
    message:
        "Configuration {wildcards.dataset} {wildcards.id}"
    shell:
        "printf '%s' {params.text:q} > {output} 2> {log}"


rule train:
    input:
        config="results/configs/{dataset}/{id}.yaml",
        data="results/data/{dataset}.json",
        store=ancient("results/mlflow.ready"),
    output:
        "results/runs/{dataset}/{id}/result.json",
    log:
        "results/logs/train/{dataset}/{id}.log",
    benchmark:
        "results/logs/train/{dataset}/{id}.tsv"
    params:
        out=subpath(output[0], parent=True),
        ampgnn=AMPGNN,
        code=sources_digest("ampgnn.nn", "ampgnn.models", "ampgnn.training", "ampgnn.precision", "ampgnn_kernels"),
    threads: config["threads"]
    resources:
        gpu=lambda wildcards: int(config_of(wildcards).device == "cuda"),
    message:
        "Training {wildcards.dataset} {wildcards.id}"
    shell:
        "{params.ampgnn} train --config {input.config} --data {input.data} --out {params.out}"
        " --threads {threads} 2>&1 | tee {log}"
