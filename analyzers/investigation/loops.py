"""How far in its loop a rank was at each call, as steps, forwards and data loaders tell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from distdiag.analyzers.investigation.issued import Issued
from distdiag.analyzers.investigation.paths import Frames
from distdiag.analyzers.investigation.rows import by_rank, records
from distdiag.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """What a rank had of one pass over a data set at some moment."""

    number: int
    """Passes over that line's data sets before."""
    taken: int
    ended: bool
    loop: Frames
    """User frames that asked for the batches, outermost first; empty where they are not known."""


class Epochs:
    """Looks up where ranks were in their data."""

    def __init__(self, run: Run) -> None:
        self._paths = run.paths
        asked = run.batches.sort_values("time_ns", kind="stable")
        # What asks for a batch tells its line; that it came does not.
        asked = asked.assign(path=asked.groupby("rank")["path"].ffill())
        answers = asked[asked["edge"] == "end"]
        self._answers = {int(str(rank)): rows for rank, rows in answers.groupby("rank")}

    def at(self, rank: int, before_ns: int) -> Epoch | None:
        """Return the pass over a data set that a rank was in last, None where no loader was watched."""
        answers = self._answers.get(rank)
        if answers is None:
            return None
        earlier = answers[answers["time_ns"] <= before_ns]
        if earlier.empty:
            return None
        same = _same_line(earlier)
        number, taken, ended, loader = 0, 0, False, None
        for row in records(same):
            if loader is not None and (row.loader != loader or ended):
                number, taken, ended = number + 1, 0, False
            loader = row.loader
            ended = bool(row.exhausted)
            taken += not ended
        path = same["path"].iloc[-1]
        return Epoch(number=number, taken=taken, ended=ended, loop=() if pd.isna(path) else self._paths.get(path, ()))

    def short(self, one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int] | None:
        """Return how many batches two ranks had, where the data of the first ended and those of the other went on.

        Each is a rank with the moment at which to look.
        """
        mine, its = self.at(*one), self.at(*other)
        if mine is None or its is None or (mine.loop, mine.number) != (its.loop, its.number):
            return None
        return (mine.taken, its.taken) if mine.ended and its.taken > mine.taken else None

    def apart(self, moments: Mapping[int, int]) -> Mapping[int, tuple[int, ...]]:
        """Return ranks by how many batches they had, the fewest first, where data ended and that of others went on.

        ``moments`` tells for each rank when to look; empty where no pass over the data came out so.
        """
        passes: dict[tuple[Frames, int], dict[int, Epoch]] = {}
        for rank, before_ns in sorted(moments.items()):
            epoch = self.at(rank, before_ns)
            if epoch is not None:
                passes.setdefault((epoch.loop, epoch.number), {})[rank] = epoch
        for epochs in passes.values():
            most = max(epoch.taken for epoch in epochs.values())
            counted = {rank: epoch.taken for rank, epoch in epochs.items() if epoch.ended or epoch.taken == most}
            if any(epochs[rank].ended and taken < most for rank, taken in counted.items()):
                return {
                    taken: tuple(rank for rank, each in counted.items() if each == taken)
                    for taken in sorted(set(counted.values()))
                }
        return {}


def _same_line(answers: pd.DataFrame) -> pd.DataFrame:
    """Return the answers to the line that asked last."""
    paths = answers["path"].fillna(-1)
    same: pd.DataFrame = answers[paths == paths.iloc[-1]]
    return same


FORWARD = "forward"
"""The phase that recording infers while a forward goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far in its loop a rank was."""

    batches: int
    """Batches taken from data loaders so far."""
    forwards: int
    backwards: int
    without_backward: int = 0
    """Forwards that no backward followed, not counting one that still went on."""
    unfinished: bool = False
    """Whether a pass had begun that no step of an optimizer had ended, in a job that has such steps."""
    ran_out: bool = False
    """Whether the last that a data loader said was that it has no more."""
    passing: bool = False
    """Whether the last of its forwards still went on."""

    epoch: Epoch | None = None
    """The pass over a data set that it was in, where its loader was watched."""

    @property
    def finished(self) -> int:
        """Return how many forwards were over."""
        return self.forwards - self.passing


class Labels:
    """Looks up the progress of ranks."""

    def __init__(self, run: Run) -> None:
        answers = run.batches[run.batches["edge"] == "end"].sort_values("time_ns", kind="stable")
        self._answers = {int(str(rank)): rows for rank, rows in answers.groupby("rank")}
        taken = answers[~answers["exhausted"]]
        self._batches = {int(str(rank)): times.to_numpy() for rank, times in taken.groupby("rank")["time_ns"]}
        self._forwards = _Counter(run, "forwards")
        self._backwards = _Counter(run, "backwards")
        self._has_steps = not run.steps.empty
        self._passes: dict[int, dict[int, tuple[int, int]]] = {}
        counted = run.steps.fillna({"forwards": 0, "backwards": 0})
        for row in records(counted[["rank", "step", "forwards", "backwards"]]):
            self._passes.setdefault(int(row.rank), {})[int(row.step)] = int(row.forwards), int(row.backwards)
        self.epochs = Epochs(run)

    def of(self, rows: pd.DataFrame) -> Sequence[tuple[int, int]]:
        """Return (batches, forwards) of calls of one rank; steps stand for forwards where no rank's are known."""
        if rows.empty:
            return ()
        rank = int(rows["rank"].iloc[0])
        taken = np.searchsorted(self._batches.get(rank, np.zeros(0)), rows["start_ns"].to_numpy())
        if not self._forwards.any:
            return list(zip(taken.tolist(), rows["step"].tolist(), strict=True))
        begun = [
            self._forwards.at(rank, step, forwards)
            for step, forwards in zip(rows["step"].tolist(), rows["forwards"].tolist(), strict=True)
        ]
        return list(zip(taken.tolist(), begun, strict=True))

    def at(self, call: Issued) -> Progress:
        """Return how far a rank was when it issued a call."""
        forwards = self._forwards.at(call.rank, call.step, call.forwards)
        backwards = self._backwards.at(call.rank, call.step, call.backwards)
        return Progress(
            batches=int(np.searchsorted(self._batches.get(call.rank, np.zeros(0)), call.start_ns)),
            forwards=forwards,
            backwards=backwards,
            without_backward=forwards - backwards - (call.phase == FORWARD),
            unfinished=self._has_steps and call.forwards > 0,
            ran_out=self._ran_out(call.rank, call.start_ns),
            passing=call.phase == FORWARD,
            epoch=self.epochs.at(call.rank, call.start_ns),
        )

    def passes(self, rank: int) -> Mapping[int, tuple[int, int]]:
        """Return how many forwards and backwards each step of a rank had that it ended."""
        return self._passes.get(rank, {})

    def in_all(self, rank: int) -> Progress:
        """Return how far a rank came."""
        return Progress(
            batches=len(self._batches.get(rank, ())),
            forwards=self._forwards.total(rank),
            backwards=self._backwards.total(rank),
            ran_out=self._ran_out(rank, None),
        )

    def _ran_out(self, rank: int, before_ns: int | None) -> bool:
        answers = self._answers.get(rank)
        if answers is None:
            return False
        earlier = answers if before_ns is None else answers[answers["time_ns"] <= before_ns]
        return len(earlier) > 0 and bool(earlier["exhausted"].iloc[-1])


class _Counter:
    """Something counted within each step, as a count over all steps."""

    def __init__(self, run: Run, column: str) -> None:
        counted = pd.concat([run.steps[["rank", "step", column]], run.calls[["rank", "step", column]]])
        per_step = counted.fillna({column: 0}).groupby(["rank", "step"])[column].max().astype("int64")
        before = per_step.groupby("rank").cumsum() - per_step
        self._before = {key: int(value) for key, value in before.items()}
        self._totals = by_rank(per_step.groupby("rank").sum())
        self.any = any(self._totals.values())
        """Whether it was counted at all, on any rank."""

    def at(self, rank: int, step: int, within: int) -> int:
        return self._before.get((rank, step), 0) + within

    def total(self, rank: int) -> int:
        return int(self._totals.get(rank, 0))
