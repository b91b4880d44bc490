"""Two runs beside each other: which part of a step takes longer in the second, and whether that is more than noise.

A run's pace is a series, and neighbouring steps are alike: the interval of a ratio comes from a bootstrap over blocks
of consecutive steps (Künsch 1989), not over single steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from distdiag.analyzers.performance import Measured, measure
from distdiag.analyzers.performance.ledger import PARTS
from distdiag.errors import DistdiagError
from distdiag.run import Run

LEAST_STEPS = 20
"""Of fewer steps no interval can be told."""
BLOCK_STEPS = 10
RESAMPLINGS = 1000
SEED = 20240229
"""The same logs give the same answer."""
CONFIDENCE = 0.95
NOTABLE_SHARE = 0.01
"""Of the step: parts below it are not compared one by one."""

_OF_THE_LAUNCH = ("TORCHELASTIC_", "SLURM_RESTART_COUNT", "DISTDIAG")
"""Settings that differ from one launch to the next, and change nothing."""

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One quantity in both runs: medians over steps, in seconds or tokens per second."""

    what: str
    before: float
    after: float
    ratio: float
    """after / before of the medians."""
    low: float
    high: float
    """The 95 % interval of the ratio."""

    @property
    def sure(self) -> bool:
        """Whether the interval leaves out that nothing changed."""
        return self.low > 1 or self.high < 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What changed from one run to another."""

    step: Change
    parts: tuple[Change, ...]
    """Those parts of a step that make up at least a hundredth of it in either run; the greatest difference first."""
    tokens: Change | None
    """Tokens per second of the job."""
    steps: tuple[int, int]
    settings: Mapping[str, tuple[str, str]]
    """What differs in versions, sizes and recorded settings: before, after."""

    def slower(self, limit: float) -> bool:
        """Whether the second run's step is surely longer, and by more than ``limit`` as a share."""
        return self.step.low > 1 and self.step.ratio > 1 + limit

    def faster(self, limit: float) -> bool:
        """Whether the second run's step is surely shorter, and by more than ``limit`` as a share."""
        return self.step.high < 1 and self.step.ratio < 1 - limit


def compare(before: Run, after: Run) -> Comparison:
    """Return what changed between two runs; raises ``DistdiagError`` where either has too few whole steps."""
    series = tuple(_series(measure(run), name) for run, name in ((before, "the first"), (after, "the second")))
    first, second = series
    step = _change("step", first["step"], second["step"])
    parts = [
        _change(part, first[part], second[part])
        for part in (*PARTS, "waiting")
        if max(first[part].median() / first["step"].median(), second[part].median() / second["step"].median())
        >= NOTABLE_SHARE
    ]
    parts.sort(key=lambda change: -abs(change.after - change.before))
    tokens = None
    if first["tokens"].gt(0).all() and second["tokens"].gt(0).all():
        tokens = _change("tokens per second", first["tokens"] / first["step"], second["tokens"] / second["step"])
    return Comparison(
        step=step,
        parts=tuple(parts),
        tokens=tokens,
        steps=(len(first), len(second)),
        settings=_differences(before, after),
    )


def _series(measured: Measured, name: str) -> pd.DataFrame:
    """Return a row per step in seconds: the mean over the ranks, tokens of all of them together."""
    ledger = measured.ledger
    steps = 0 if ledger.empty else ledger["step"].nunique()
    if steps < LEAST_STEPS:
        raise DistdiagError(
            f"{name} run has {steps} whole steps after its warm-up, {LEAST_STEPS} are needed to compare",
            "record longer runs; steps end with an optimizer's step or with distdiag.step()",
        )
    of_step = ledger.groupby("step")
    columns = {part: of_step[f"{part}_ns"].mean() / 1e9 for part in (*PARTS, "step", "waiting")}
    return pd.DataFrame(columns | {"tokens": of_step["tokens"].sum(min_count=1).fillna(0.0)})


def _change(what: str, before: "pd.Series[float]", after: "pd.Series[float]") -> Change:
    first, second = (np.asarray(each, dtype=np.float64) for each in (before, after))
    median_before, median_after = float(np.median(first)), float(np.median(second))
    random = np.random.default_rng(SEED)
    ratios = _medians(second, random) / np.maximum(_medians(first, random), 1e-12)
    tail = (1 - CONFIDENCE) / 2
    low, high = (float(each) for each in np.quantile(ratios, (tail, 1 - tail)))
    ratio = median_after / max(median_before, 1e-12)
    return Change(what=what, before=median_before, after=median_after, ratio=ratio, low=low, high=high)


def _medians(series: Numbers, random: np.random.Generator) -> Numbers:
    """Return medians of series put together anew from blocks of consecutive steps."""
    length = min(BLOCK_STEPS, max(1, len(series) // 4))
    blocks = -(-len(series) // length)
    starts = random.integers(0, len(series) - length + 1, size=(RESAMPLINGS, blocks))
    picked = series[(starts[:, :, None] + np.arange(length)).reshape(RESAMPLINGS, -1)[:, : len(series)]]
    medians: Numbers = np.median(picked, axis=1)
    return medians


def _differences(before: Run, after: Run) -> dict[str, tuple[str, str]]:
    first, second = _facts(before), _facts(after)
    names = sorted(first.keys() | second.keys())
    return {
        name: (first.get(name, "-"), second.get(name, "-")) for name in names if first.get(name) != second.get(name)
    }


def _facts(run: Run) -> dict[str, str]:
    facts = {"world size": str(run.world_size), "hosts": str(run.headers["host"].nunique())}
    if len(run.headers):
        header = run.headers.iloc[0]
        facts |= {f"{name} version": str(version) for name, version in (header["versions"] or {}).items()}
        settings = (header["settings"] or {}).items()
        facts |= {name: str(value) for name, value in settings if not name.startswith(_OF_THE_LAUNCH)}
    return facts
