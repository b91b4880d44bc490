"""A run in a notebook: its tables as frames, its records as Ibis tables, its findings and its report."""

import dataclasses
import io
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import ibis
import pandas as pd

from distdiag import importers
from distdiag.analyzers import diagnose
from distdiag.findings import Report
from distdiag.reporters import text
from distdiag.run import Run

if TYPE_CHECKING:
    import os


class Loaded:
    """What ``distdiag.load`` returns.

    ``frames`` holds one pandas frame per kind of record, times in nanoseconds of one wall clock for all ranks;
    ``table(kind)`` the same records in full as a lazy Ibis table; ``findings()`` what was found.
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that left a log."""
        return self.run.ranks

    @cached_property
    def frames(self) -> dict[str, pd.DataFrame]:
        """The frames of the run by name: ``calls``, ``steps``, ``memory`` …; long logs give their newest part."""
        named = {each.name: getattr(self.run, each.name) for each in dataclasses.fields(self.run)}
        return {name: value for name, value in named.items() if isinstance(value, pd.DataFrame)}

    def __getitem__(self, name: str) -> pd.DataFrame:
        """Return a frame by name."""
        try:
            return self.frames[name]
        except KeyError:
            raise KeyError(f"{name}: there are {', '.join(self.frames)}") from None

    def table(self, kind: str) -> ibis.Table:
        """Return all records of a kind (``call``, ``done``, ``step`` …) as a lazy table, whatever their number."""
        return self.run.table(kind)

    @cached_property
    def report(self) -> Report:
        """The report, as ``distdiag analyze`` makes it."""
        return diagnose(self.run)

    def findings(self) -> pd.DataFrame:
        """Return a row per finding, the verdict's first."""
        names = [each.name for each in dataclasses.fields(self.report.findings[0])] if self.report.findings else []
        rows = [{name: getattr(finding, name) for name in names} for finding in self.report.findings]
        return pd.DataFrame(rows, columns=names or ["code", "name", "severity", "summary"])

    def ledger(self) -> pd.DataFrame:
        """Return a row per rank and step: what it did with its time, in nanoseconds, in parts that add up."""
        from distdiag.analyzers.performance import measure

        return measure(self.run).ledger.copy()

    def __repr__(self) -> str:
        """Return the report as text."""
        out = io.StringIO()
        text.render(self.report, out)
        return out.getvalue().rstrip()


def load(path: "str | os.PathLike[str]") -> Loaded:
    """Read a folder of logs, dumps or traces; raises ``DistdiagError`` when there is nothing to analyse."""
    return Loaded(importers.load(Path(path)))
