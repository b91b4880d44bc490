"""Numerics of a whole run: of logs too long to be read whole the frames hold the newest steps only."""

import weakref
from collections import defaultdict

import pandas as pd

from distdiag import events
from distdiag.run import Run
from distdiag.run.frames import Ranked, frame_of

TELLING = (b'"nonfinite"', b'"checksum"', b'"unsynchronised"', b'"loss_scale"')
"""Fields of the records that are wanted of old steps; losses are not."""

_known: weakref.WeakKeyDictionary[Run, pd.DataFrame] = weakref.WeakKeyDictionary()


def numerics_of(run: Run) -> pd.DataFrame:
    """Return the numerics of all steps where the newest ones look suspicious, else what the frame holds.

    What is wrong with numbers stays wrong: the newest steps show it, and the old ones when it began.
    """
    if run.quality.window_bytes is None or not _is_suspicious(run.numerics):
        return run.numerics
    if run not in _known:
        _known[run] = _whole(run)
    return _known[run]


def _whole(run: Run) -> pd.DataFrame:
    ranked = []
    for file, line in run.engine.lines_of(run.files, (events.Numerics,)):
        if line is not None and any(field in line for field in TELLING):
            ranked.append(Ranked(rank=run.file_ranks[file], record=events.decode(line)))
    old = frame_of(events.Numerics, ranked, lambda rank, path: path, defaultdict(int))
    return pd.concat([old, run.numerics], ignore_index=True)


def _is_suspicious(numerics: pd.DataFrame) -> bool:
    if (numerics["nonfinite"].map(len) > 0).any() or numerics["unsynchronised"].notna().any():
        return True
    checked = numerics[numerics["checksum"].notna()].groupby(["wrapper", "step"])["checksum"].nunique()
    scaled = numerics[numerics["loss_scale"].notna()].groupby("step")["loss_scale"].nunique()
    return bool((checked > 1).any() or (scaled > 1).any())
