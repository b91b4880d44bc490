"""Reporters: each renders a report in one form; the names in ``REPORTERS`` are those of ``--format``."""

from collections.abc import Mapping
from typing import Protocol, TextIO

from distdiag.findings import Report
from distdiag.reporters import html, json, text


class Reporter(Protocol):
    """A module that renders reports."""

    def render(self, report: Report, out: TextIO) -> None:
        """Write ``report`` to ``out``."""


DRAWING: frozenset[str] = frozenset({"html"})
"""Forms that draw: they want a report with pictures."""

REPORTERS: Mapping[str, Reporter] = {"text": text, "json": json, "html": html}
