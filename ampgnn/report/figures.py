"""The report's pictures, as SVG whose text takes the page's colour."""

from __future__ import annotations

import io
import re

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.ticker import MaxNLocator

from .tables import Row, Table

COLOURS = {"fp32": "#7a7f87", "fp16": "#d97706", "bf16": "#2563eb"}
WIDTHS = {"fp32": 4.0, "fp16": 2.4, "bf16": 1.2}  # curves that coincide stay visible
STYLES = {
    ("native", "amp"): "-",
    ("native", "pure"): "--",
    ("native", ""): "-",
    ("dgl", ""): ":",
    ("dgl", "pure"): ":",
}
_INK = "#010203"  # stands for currentColor
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ampgnn",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


def loss_curves(table: Table, curves: dict[tuple[str, str, int], pd.DataFrame]) -> str | None:
    """Training loss by epoch; a line a configuration (mean over seeds, the band their range), a panel a setting."""
    rows = [r for r in table.rows if not r.time_only]
    settings = list(dict.fromkeys(r.setting for r in rows))
    if not rows:
        return None
    with plt.rc_context(_STYLE):
        fig, axes = plt.subplots(1, len(settings), figsize=(4.6 * len(settings), 3.1), squeeze=False, sharey=True)
        for ax, panel in zip(axes[0], settings, strict=True):
            for row in sorted((r for r in rows if r.setting == panel), key=lambda r: -WIDTHS[r.precision]):
                frames = [curves.get((table.dataset, row.id, run["seed"])) for run in row.runs]
                series = [f["train/loss"] for f in frames if f is not None and len(f)]
                if not series:
                    continue
                both = pd.concat(series, axis=1)
                style = STYLES.get((row.backend, row.mode), "-.")
                colour = COLOURS[row.precision]
                ax.plot(both.index, both.mean(axis=1), style, color=colour, lw=WIDTHS[row.precision], label=row.name)
                if len(series) > 1:
                    ax.fill_between(both.index, both.min(axis=1), both.max(axis=1), color=colour, alpha=0.08, lw=0)
            ax.set(xlabel="epoch", title=panel)
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes[0][0].set_ylabel("training loss")
        lines = {line.get_label(): line for ax in axes[0] for line in ax.get_lines()}  # a panel may lack some
        axes[0][-1].legend(handles=list(lines.values()), loc="center left", bbox_to_anchor=(1.0, 0.5))
        return _svg(fig)


def speedups(table: Table) -> str | None:
    """Time of an epoch, DGL fp32 over each configuration; longer is faster."""
    rows = [r for r in table.rows if r.speedup is not None]
    if not any(r.backend == "native" for r in rows):
        return None
    with plt.rc_context(_STYLE):
        fig, ax = plt.subplots(figsize=(7.2, 0.5 + 0.26 * len(rows)))
        for place, row in enumerate(reversed(rows)):
            colour = COLOURS[row.precision]
            ax.barh(place, row.speedup, color=colour, alpha=1 if row.backend == "native" else 0.45, height=0.72)
            ax.text(
                row.speedup,
                place,
                f" {row.speedup:.2g}×" if row.speedup < 10 else f" {row.speedup:.0f}×",
                va="center",
                fontsize=9,
            )
        ax.set_yticks(range(len(rows)), [_label(r) for r in reversed(rows)])
        ax.axvline(1, color=_INK, lw=0.8, ls=":")
        ax.set_xlabel("times as fast as DGL fp32")
        ax.tick_params(axis="y", length=0)
        return _svg(fig)


def _label(row: Row) -> str:
    return f"{row.name}, {row.setting}" if row.setting else row.name


def _svg(fig) -> str:
    out = io.StringIO()
    fig.savefig(out, format="svg", bbox_inches="tight", transparent=True, metadata={"Date": None, "Creator": None})
    plt.close(fig)
    text = out.getvalue()
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    head, rest = text.split(">", 1)
    return re.sub(r' (width|height)="[^"]*"', "", head) + ">" + rest  # the page sets the size
