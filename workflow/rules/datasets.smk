rule prepare_dataset:
    output:
        "results/data/{dataset}.json",
    log:
        "results/logs/data/{dataset}.log",
    params:
        options=dataset_options,
        cache=config["cache"],
        on_unavailable=config["on_unavailable"],
        ampgnn=AMPGNN,
        code=sources_digest("ampgnn.datasets"),
    retries: 1
    message:
        "Dataset {wildcards.dataset}"
    shell:
        "{params.ampgnn} data {params.options} --out {output} --cache {params.cache:q}"
        " --on-unavailable {params.on_unavailable} 2>&1 | tee {log}"
