"""The command line: one sub-command a pipeline stage, each a thin call."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from .errors import UserError

_typer = typer.Typer(
    help="Mixed-precision training of graph neural networks: right, fast and reproducible.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@_typer.command()
def data(
    name: Annotated[str, Argument(help="digits, cora, citeseer, pubmed, reddit, ogbn-arxiv or ogbn-products")],
    out: Annotated[Path, Option(help="the record to write (JSON)")],
    scale: Annotated[float | None, Option(help="reddit: a synthetic stand-in of that share of its size")] = None,
    cache: Annotated[Path | None, Option(help="folder for downloads and prepared files")] = None,
    on_unavailable: Annotated[
        str, Option(help="record: write why it cannot be had; fail: stop with an error")
    ] = "record",
) -> None:
    """Fetch or make a dataset, verify it and write a record of it."""
    if on_unavailable not in ("record", "fail"):
        raise UserError(f"--on-unavailable must be record or fail, got {on_unavailable}")
    from .datasets import prepare

    record = prepare(name, out, scale=scale, cache=cache, on_unavailable=on_unavailable)
    print(f"{record['key']}: {record['status']}, {record['reason'] or record['note']}")


@_typer.command()
def train(
    config: Annotated[Path, Option(help="the configuration (YAML)")],
    data: Annotated[Path, Option(help="the dataset's record, from `ampgnn data`")],
    out: Annotated[Path, Option(help="folder for the results; what is there is replaced")],
    threads: Annotated[int | None, Option(help="torch threads", min=1)] = None,
) -> None:
    """Train all seeds of one configuration; log to MLflow; write result.json."""
    from . import config as configs
    from .training import run_config

    run_config(configs.load(config), data, out, threads)


@_typer.command()
def plan(
    config: Annotated[Path, Option(help="the configuration (YAML)")],
    data: Annotated[Path, Option(help="the dataset's record, from `ampgnn data`")],
) -> None:
    """Predict the peak memory of a configuration, and of its twins in every precision, without running it."""
    from . import config as configs
    from .datasets import read_record
    from .plan import Shape, table, variants

    rows = variants(configs.load(config), Shape.of_record(read_record(data)))
    lines = table(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *cells in lines:
        print(first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells, widths[1:], strict=True)), sep="  ")


@_typer.command()
def report(
    results: Annotated[list[Path] | None, Argument(help="result.json files; default: all below results/runs")] = None,
    out: Annotated[Path, Option(help="folder for index.html and report.md")] = Path("results/report"),
) -> None:
    """Compare runs: tables, figures, HTML and Markdown."""
    from .report import write_report

    write_report(results or sorted(Path("results/runs").rglob("result.json")), out)


@_typer.command("track-init")
def track_init() -> None:
    """Create or migrate the MLflow store, so that parallel jobs find it ready."""
    from .tracking import default_uri, open_store

    try:
        open_store()
    except Exception as error:
        print(
            f"warning: MLflow at {default_uri()} cannot be used: {' '.join(str(error).split())[:200]}",
            file=sys.stderr,
        )
    else:
        print(f"MLflow store ready: {default_uri()}")


@_typer.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    script: Annotated[str, Argument(help="a Python script that uses DGL; its own arguments follow")],
) -> None:
    """Run an unchanged DGL script on the native kernels."""
    from .dgl import run_script

    run_script(script, context.args)


@_typer.command()
def doctor() -> None:
    """Show what this machine can do, and why not."""
    from .doctor import main

    main()


def app() -> None:
    """The entry point: a ``UserError`` is one line on stderr and exit status 2."""
    try:
        _typer()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
