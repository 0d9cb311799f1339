rule prepare_dataset:
    input:
        image=ancient(image_record()),
    output:
        "results/data/{dataset}.json",
    log:
        "results/logs/data/{dataset}.log",
    retries: 1
    conda:
        "../../envs/cpu.yaml"
    params:
        options=dataset_options,
        cache=config["cache"],
        on_unavailable=config["on_unavailable"],
        ampgnn=stage_command(),
        code=code_digest("ampgnn.datasets"),
    message:
        "Dataset {wildcards.dataset}"
    shell:
        "{params.ampgnn} data {params.options} --out {output} --cache {params.cache:q}"
        " --on-unavailable {params.on_unavailable} 2>&1 | tee {log}"
