"""The last lines of the terminal: what ran, what did not and why, what was substituted, where the report is."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from ampgnn import containers


def summary(results: list[str], report: list[str], images: list[str] = ()) -> list[str]:
    """Lines about those of ``results`` (result.json files), ``report`` and ``images`` (records) that exist."""
    found = [json.loads(Path(r).read_text()) for r in results if Path(r).exists()]
    runs = [(result, run) for result in found for run in result["runs"]]
    status = Counter(run["status"] for _, run in runs)
    missing = len(results) - len(found)
    lines = [f"ampgnn: {status['finished']} runs finished, {status['failed']} failed, {status['not_run']} not run"]
    if missing:
        lines[0] += f", {missing} of {len(results)} configurations without a result"
    reasons = Counter(run["reason"] for _, run in runs if run["status"] != "finished")
    lines += [f"  {count} x {reason}" for reason, count in reasons.most_common()]
    notes = {
        r["dataset"]["key"]: r["dataset"]["note"] for r in found if r["dataset"].get("origin") == "synthetic stand-in"
    }
    lines += [f"  {key}: {note}" for key, note in notes.items()]
    if any(not r["tracking"]["reachable"] for r in found):
        lines.append("  MLflow could not be used for some runs: the report says which")
    lines += [f"  {containers.describe(containers.read_record(path))}" for path in images if Path(path).exists()]
    lines += [f"  report: {path}" for path in report if Path(path).exists()]
    return lines
