rule report:
    input:
        results=RESULTS,
        records=RECORDS,
        images=IMAGES,
    output:
        html=report(REPORT[0], category="Comparison", caption="../report/comparison.rst"),
        markdown=REPORT[1],
    log:
        "results/logs/report.log",
    conda:
        "../../envs/cpu.yaml"
    params:
        out=subpath(output.html, parent=True),
        ampgnn=stage_command(),
        images=" ".join(f"--image {path}" for path in IMAGES),
        code=code_digest("ampgnn.report"),
    message:
        "Report"
    shell:
        "{params.ampgnn} report --out {params.out} {params.images} {input.results} 2>&1 | tee {log}"
