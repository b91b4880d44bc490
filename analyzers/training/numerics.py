"""Numerics of a whole run, and the values among them that are not finite: on which ranks, in which step, and whence.

Of logs too long to be read whole the frames hold the newest steps only."""

import math
import weakref
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pandas as pd

from distdiag import events
from distdiag.run import Run
from distdiag.run.frames import Ranked, frame_of

TELLING = (b'"nonfinite"', b'"checksum"', b'"unsynchronised"', b'"loss_scale"', b'"optimizer"')
"""Fields of the records that are wanted of old steps; losses are not."""
_known: weakref.WeakKeyDictionary[Run, pd.DataFrame] = weakref.WeakKeyDictionary()
WORDS = ("nan", "inf", "infinity")
LOCAL = ("loss", "gradient")
"""What a rank computed before anything of its peers was added to it."""
DIVERGED = "diverged"
"""Cause of a loss that left all bounds by itself."""
OUT_OF_BOUNDS = 1e6
"""Times the first loss: no training that works comes there."""


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


def is_nonfinite(value: Any) -> bool:
    """Return whether a logged value is not finite; JSON has no such numbers, they are logged as words."""
    if isinstance(value, str):
        return value.lower().lstrip("+-") in WORDS
    return isinstance(value, float) and not math.isfinite(value) and not pd.isna(value)


def nonfinite_rows(run: Run) -> pd.DataFrame:
    """Return a row per rank, step and name: ``loss``, ``gradient`` or ``grad_norm`` that was not finite.

    Gradients that overflow under a loss scaler are how it finds its scale: they are no rows.
    """
    numerics = numerics_of(run)
    told = numerics[numerics["nonfinite"].map(len) > 0][["rank", "step", "nonfinite"]].explode("nonfinite")
    told = told.rename(columns={"nonfinite": "name"})
    scaled = set(numerics[numerics["loss_scale"].notna()]["rank"])
    told = told[(told["name"] == "loss") | ~told["rank"].isin(scaled)]
    steps = run.steps
    said = steps[steps["facts"].map(lambda facts: is_nonfinite(facts.get("loss"))).astype(bool)][["rank", "step"]]
    known = set(numerics[numerics["loss"].notna()]["rank"])
    said = said[~said["rank"].isin(known)].assign(name="loss")
    return pd.concat([told, said], ignore_index=True).drop_duplicates().sort_values(["step", "rank", "name"])


def diverged(run: Run, step: int) -> tuple[float, float] | None:
    """Return the first and the last finite loss if it left all bounds before a step, on every rank alike.

    That is what a learning rate or a loss without a minimum does, not a rank or a machine.
    """
    numerics = numerics_of(run)
    losses = numerics[numerics["loss"].notna() & (numerics["step"] < step)].sort_values("step")
    losses = losses[[isinstance(value, int | float) and math.isfinite(value) for value in losses["loss"]]]
    heard = set(numerics["rank"])
    if losses.empty or set(losses["rank"]) != heard:
        return None
    first, last = (losses.groupby("rank")["loss"].agg(which).astype("float64") for which in ("first", "last"))
    if (last.abs() < OUT_OF_BOUNDS * first.abs().clip(lower=1.0)).any():
        return None
    return float(first.iloc[0]), float(last.iloc[0])


def first_nonfinite(run: Run, ranks: Iterable[int]) -> int | None:
    """Return the first step in which any of some ranks had a value that was not finite."""
    rows = nonfinite_rows(run)
    steps = rows[rows["rank"].isin(set(ranks))]["step"]
    return None if steps.empty else int(steps.min())
