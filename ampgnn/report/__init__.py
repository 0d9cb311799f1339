"""The stage ``ampgnn report``: from MLflow runs to tables, figures, HTML and Markdown."""

from .summary import summary
from .write import write_report

__all__ = ["summary", "write_report"]
