"""Calls and steps of a run as tables: from its frames or, where those hold only the newest, from the whole logs."""

from distdiag.analyzers.performance.columns import Tables
from distdiag.analyzers.performance.tables_in_frames import tables_in_frames
from distdiag.analyzers.performance.tables_in_logs import tables_in_logs
from distdiag.run import Run


def tables_of(run: Run, *, whole: bool) -> Tables:
    """Return the tables from a run's frames, or from the ``whole`` logs."""
    return tables_in_logs(run) if whole else tables_in_frames(run)
