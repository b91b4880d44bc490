"""What ``distdiag analyze`` says of a folder of several runs: which they are, and how each of them ended."""

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from distdiag.errors import DistdiagError

if TYPE_CHECKING:
    from distdiag.importers import SeveralRunsError
    from distdiag.reporters.runs import Surveyed

MOST_RUNS = 20
"""Analysed for one survey, the newest: nobody reads more verdicts at once, and each takes a second."""
CANNOT = 2
HEALTHY = "healthy"


def survey(several: "SeveralRunsError") -> int:
    """Analyse each run and write a verdict each; return 0 if all are healthy, 2 if none could be read, else 1."""
    from distdiag.reporters import _terminal, runs

    looked = list(_looked(several))
    width, _ = _terminal.size(sys.stdout)
    _terminal.write(runs.compose(several.where, looked, total=len(several.runs), width=width), sys.stdout)
    return code_of(looked)


def code_of(looked: "Sequence[Surveyed]") -> int:
    """Return the exit code of a survey."""
    names = {run.verdict.name for run in looked if run.verdict is not None}
    if not names:
        return CANNOT
    return 0 if names == {HEALTHY} and all(run.verdict is not None for run in looked) else 1


def _looked(several: "SeveralRunsError") -> "Iterator[Surveyed]":
    from distdiag.analyzers import diagnose
    from distdiag.importers import load
    from distdiag.reporters.runs import Surveyed

    for run in several.runs[:MOST_RUNS]:
        try:
            yield Surveyed(folders=run.folders, verdict=diagnose(load(*run.folders)).verdict)
        except DistdiagError as error:
            yield Surveyed(folders=run.folders, verdict=None, refusal=error.message)
