rule report:
    input:
        results=RESULTS,
        records=RECORDS,
    output:
        html=report(REPORT[0], category="Comparison", caption="../report/comparison.rst"),
        markdown=REPORT[1],
    log:
        "results/logs/report.log",
    params:
        out=subpath(output.html, parent=True),
        ampgnn=AMPGNN,
        code=sources_digest("ampgnn.report"),
    message:
        "Report"
    shell:
        "{params.ampgnn} report --out {params.out} {input.results} 2>&1 | tee {log}"
