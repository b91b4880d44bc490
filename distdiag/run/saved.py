"""The checkpoints that a run saved, and what verification has said of those that can be seen from here."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdiag.deferred import deferred
from distdiag.run.frames import empty, frame

if TYPE_CHECKING:
    import pandas as pd

    from distdiag.checkpoints import records
else:
    records = deferred("distdiag.checkpoints.records")  # few runs that are looked at saved any

SAVES = ("checkpoint save", "checkpoint upload")
"""Phases in which a checkpoint is written."""
SHARDED = "sharded"
MOST_LOOKED_AT = 3
"""The newest checkpoints are looked at; older ones have been superseded."""
PATIENCE_SECONDS = 2.0
"""The file system of a run that hangs may hang, too: reading its logs must not."""

CHECKPOINT_COLUMNS: Mapping[str, str] = {
    "directory": "object",
    "step": "int64",
    "end_ns": "int64",
    "visible": "bool",
    "outcome": "object",
    "summary": "object",
}
"""``outcome`` is None where the checkpoint was not verified since it was saved, or cannot be seen from here."""


def no_checkpoints() -> pd.DataFrame:
    """Return a frame without rows."""
    return empty(CHECKPOINT_COLUMNS)


def checkpoints_frame(phases: pd.DataFrame) -> pd.DataFrame:
    """Return one row per sharded checkpoint that was saved, the oldest first."""
    saved = phases[
        phases["phase"].isin(SAVES) & (phases["edge"] == "end") & (phases["format"] == SHARDED) & ~phases["failed"]
    ]
    newest = saved.sort_values("time_ns").drop_duplicates("directory", keep="last").dropna(subset=["directory"])
    directories = [str(each) for each in newest["directory"]]
    seen = _look(directories[-MOST_LOOKED_AT:])
    stamps = [seen.get(each) for each in directories]
    return frame(
        CHECKPOINT_COLUMNS,
        {
            "directory": directories,
            "step": newest["step"].tolist(),
            "end_ns": newest["time_ns"].tolist(),
            "visible": [each in seen for each in directories],
            "outcome": [None if stamp is None else stamp.outcome for stamp in stamps],
            "summary": [None if stamp is None else stamp.summary for stamp in stamps],
        },
    )


def _look(directories: Sequence[str]) -> dict[str, records.Stamp | None]:
    """Return what is known of the checkpoints that can be seen from here, as far as they answer in time."""
    seen: dict[str, records.Stamp | None] = {}
    if not directories:
        return seen
    looking = threading.Thread(target=_see, args=(directories, seen), name="distdiag-checkpoints", daemon=True)
    looking.start()
    looking.join(PATIENCE_SECONDS)
    return dict(seen)


def _see(directories: Sequence[str], seen: dict[str, Any]) -> None:
    for directory in directories:
        path = Path(directory)
        if path.is_dir():
            stamp = records.read_stamp(path)
            valid = stamp is not None and stamp.metadata_digest in (records.digest_of(path), _gone(path))
            seen[directory] = stamp if valid else None


def _gone(path: Path) -> int | None:
    """Return the digest that a stamp has of metadata that are not there."""
    return None if (path / records.METADATA).exists() else 0
