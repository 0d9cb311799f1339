"""The pages."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import jinja2

from ampgnn import containers
from ampgnn import plan as planning
from ampgnn.config import dump, parse

from . import figures, tables
from .collect import collect

UI = "http://127.0.0.1:5000"  # where `make ui` serves MLflow


def write_report(files: list[Path], out: Path, images: list[Path] = ()) -> None:
    """Writes ``index.html`` (one file, no network) and ``report.md`` into ``out``.

    Args:
        files: result files. images: records of container images.

    Raises:
        UserError: there is nothing to report on, or a damaged file.
    """
    found = collect(files)
    notes = {r["config"]["dataset"]: r["dataset"].get("note") or r["dataset"]["reason"] for r in found.results}
    made = tables.make(found.runs, notes, _planned(found.results))
    context = {
        "tables": made,
        "pictures": {t.anchor: [figures.loss_curves(t, found.curves), figures.speedups(t)] for t in made},
        "problems": found.problems,
        "images": [containers.describe(containers.read_record(path)) for path in images],
        "counts": found.runs["status"].value_counts().to_dict(),
        "environments": _environments(found.results),
        "configs": {f"{r['config']['dataset']}/{r['id']}": dump(parse(r["config"])) for r in found.results},
        "threads": sorted({r.get("threads") for r in found.results if r.get("threads")}),
        "stand_ins": [t for t in made if t.stand_in],
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "run_link": run_link,
        "memory": planning.table(planning.chapter(planning.REDDIT)),
    }
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ampgnn.report"),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "spread": spread,
        "milliseconds": milliseconds,
        "by_reason": by_reason,
        "percent": percent,
        "gib": gib,
        "times": times,
        "epochs": epochs,
    }
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    for template, name in (("report.html.j2", "index.html"), ("report.md.j2", "report.md")):
        part = out / f"{name}.part"
        part.write_text(environment.get_template(template).render(context))
        os.replace(part, out / name)
    print(f"report: {out / 'index.html'}")


def _planned(results: list[dict]) -> dict[tuple[str, str], int]:
    """Predicted bytes by dataset and id, of the configurations that train on the whole graph."""
    found = {}
    for result in results:
        config = parse(result["config"])
        if result["dataset"]["status"] == "ready" and config.batch_size is None:
            found[config.dataset, config.id] = planning.plan(config, planning.Shape.of_record(result["dataset"])).total
    return found


def by_reason(table: tables.Table) -> list[tuple[str, list[str]]]:
    """Each reason once, with the configurations that it kept from running."""
    found: dict[str, list[str]] = {}
    for id, reason in table.not_run:
        found.setdefault(reason, []).append(id)
    return list(found.items())


def run_link(run: dict) -> str:
    return f"{UI}/#/experiments/{run['experiment']}/runs/{run['run_id']}"


def spread(value: tuple[float, float] | None, digits: int = 4) -> str:
    if value is None:
        return "–"
    mean, deviation = value
    return f"{mean:.{digits}g}" + (f" ± {deviation:.1g}" if deviation else "")


def milliseconds(value: tuple[float, float] | None) -> str:
    if value is None:
        return "–"
    mean, deviation = value[0] * 1000, value[1] * 1000
    digits = 0 if mean >= 100 else 1 if mean >= 10 else 2
    return f"{mean:,.{digits}f}" + (f" ± {deviation:,.{digits}f}" if deviation else "")


def percent(value: tuple[float, float] | None) -> str:
    if value is None:
        return "–"
    mean, deviation = value
    return f"{100 * mean:.2f}" + (f" ± {100 * deviation:.2f}" if deviation else "")


def gib(value: float | None) -> str:
    return "–" if value is None else f"{value / 2**30:.2f}"


def times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}"


def epochs(number: int) -> str:
    return f"{number} epoch" + ("s" if number > 1 else "")


def _environments(results: list[dict]) -> list[dict]:
    """Each different machine and set of versions, once."""
    found: list[dict] = []
    for result in results:
        if result["environment"] not in found:
            found.append(result["environment"])
    return found
