localrules:
    images,


# Failures are recorded where stages can go on without: the report tells. A record is renewed when what goes into the
# image changes, or when an engine comes or goes.
rule image:
    output:
        "results/images/{device}.json",
    log:
        "results/logs/images/{device}.log",
    priority: 1
    threads: 1024  # scaled down to --cores: no training is timed beside a build
    params:
        ampgnn=HOST,
        engine=config["engine"],
        found=lambda wildcards: containers.find_engine(config["engine"]),
        tag=lambda wildcards: containers.image_tag(wildcards.device, BUILD_ARGS.get(wildcards.device)),
        build_args=lambda wildcards: build_arguments(wildcards.device),
        on_failure="fail" if RUNNER == "docker" else "record",
    message:
        "Image {wildcards.device}"
    shell:
        "{params.ampgnn} image build {wildcards.device} --engine {params.engine} {params.build_args}"
        " --on-failure {params.on_failure} --out {output} --log {log}"


rule images:
    input:
        IMAGES,
    log:
        "results/logs/images.log",
    params:
        ampgnn=HOST,
    message:
        "Images"
    shell:
        "{params.ampgnn} image show {input} 2>&1 | tee {log}"
