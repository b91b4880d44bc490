"""How far each rank was in its data, loader by loader: an epoch is short where it ended while others' went on.

Counting batches over a whole run does not tell: who begins the next epoch has more of them, too.
"""

from dataclasses import dataclass

import pandas as pd

from distdiag.analyzers.investigation.paths import Frames
from distdiag.analyzers.investigation.rows import records
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


def _same_line(answers: pd.DataFrame) -> pd.DataFrame:
    """Return the answers to the line that asked last."""
    paths = answers["path"].fillna(-1)
    same: pd.DataFrame = answers[paths == paths.iloc[-1]]
    return same
