TRAINING_CODE = {
    device: code_digest(
        "ampgnn.nn", "ampgnn.models", "ampgnn.training", "ampgnn.precision", "ampgnn_kernels", device=device
    )
    for device in containers.DEVICES
}


localrules:
    configure,
    track_init,


rule track_init:
    input:
        image=ancient(image_record()),
    output:
        touch("results/mlflow.ready"),
    log:
        "results/logs/track_init.log",
    conda:
        "../../envs/cpu.yaml"
    params:
        ampgnn=stage_command(),
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
        image=ancient(lambda wildcards: image_record(config_of(wildcards).device)),
    output:
        "results/runs/{dataset}/{id}/result.json",
    log:
        "results/logs/train/{dataset}/{id}.log",
    benchmark:
        "results/logs/train/{dataset}/{id}.tsv"
    conda:
        lambda wildcards: f"../../envs/{config_of(wildcards).device}.yaml"
    threads: config["threads"]
    resources:
        gpu=lambda wildcards: int(config_of(wildcards).device == "cuda"),
    params:
        out=subpath(output[0], parent=True),
        ampgnn=lambda wildcards: stage_command(config_of(wildcards).device),
        code=lambda wildcards: TRAINING_CODE[config_of(wildcards).device],
    message:
        "Training {wildcards.dataset} {wildcards.id}"
    shell:
        "{params.ampgnn} train --config {input.config} --data {input.data} --out {params.out}"
        " --threads {threads} 2>&1 | tee {log}"
