"""The command line: one sub-command a pipeline stage, each a thin call."""

from __future__ import annotations

import errno
import os
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
_image = typer.Typer(help="Container images: build, show, run a stage in one.", no_args_is_help=True)
_typer.add_typer(_image, name="image")


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
    image: Annotated[list[Path] | None, Option(help="records of images; default: all in results/images")] = None,
) -> None:
    """Compare runs: tables, figures, HTML and Markdown."""
    from .report import write_report

    found = results or sorted(Path("results/runs").rglob("result.json"))
    write_report(found, out, image or sorted(Path("results/images").glob("*.json")))


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


@_image.command("build")
def image_build(
    device: Annotated[str, Argument(help="cpu or cuda")],
    out: Annotated[Path, Option(help="the image's record to write (JSON)")],
    engine: Annotated[str, Option(help="auto, docker, podman or none")] = "auto",
    build_arg: Annotated[list[str] | None, Option(help="NAME=VALUE, an argument of the Dockerfile")] = None,
    log: Annotated[Path | None, Option(help="the engine's output; default: beside the record")] = None,
    on_failure: Annotated[str, Option(help="fail: stop with an error; record: no more than the record tells")] = "fail",
) -> None:
    """Build an image, unless one of the same contents is there, and write its record."""
    from . import containers

    for name, value, allowed in (
        ("DEVICE", device, containers.DEVICES),
        ("--engine", engine, ("auto", *containers.ENGINES, "none")),
        ("--on-failure", on_failure, ("fail", "record")),
    ):
        if value not in allowed:
            raise UserError(f"{name} must be one of {', '.join(allowed)}, got {value}")
    pairs = [text.partition("=") for text in build_arg or []]
    record = containers.build(device, out, engine, {name: value for name, _, value in pairs}, log)
    if record["status"] != "built" and on_failure == "fail":
        raise UserError(containers.describe(record))
    print(containers.describe(record))


@_image.command("show")
def image_show(records: Annotated[list[Path], Argument(help="records of images")]) -> None:
    """Show what became of images; an error unless all were built."""
    from .containers import require_built

    require_built(records)


@_image.command("run", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
def image_run(
    record: Annotated[Path, Argument(help="the record of an image that was built")],
    stage: Annotated[list[str], Argument(help="data, train, report, ... with its own arguments")],
    until: Annotated[list[int] | None, Option(help="a process with whose end the container ends, too")] = None,
) -> None:
    """Run a stage in an image, as the calling user, with the folders it names mounted at their own places."""
    from .containers import run

    sys.exit(run(record, stage, until or []))


@_typer.command()
def doctor() -> None:
    """Show what this machine can do, and why not."""
    from .doctor import main

    main()


def app() -> None:
    """The entry point: a ``UserError``, or a file that cannot be written, is one line on stderr and exit status 2."""
    try:
        _typer()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror.lower()} for user {os.getuid()}", file=sys.stderr)
        sys.exit(2)
