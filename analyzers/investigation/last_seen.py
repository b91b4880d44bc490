"""Where each rank was seen last, looked up once for all ranks of a run."""

import functools

import pandas as pd

from distdiag.analyzers.investigation.paths import Frames
from distdiag.analyzers.investigation.rows import by_rank
from distdiag.run import Run


class LastSeen:
    """The newest user frames and the newest step of each rank."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def path(self, rank: int) -> Frames:
        """Return the newest user frames known of a rank, from its calls, pulses, phases and batches."""
        return self._run.paths.get(self._paths.get(rank, 0), ())

    def step(self, rank: int) -> int:
        """Return the newest step known of a rank, 0 where none is."""
        return int(self._steps.get(rank, 0))

    @functools.cached_property
    def _paths(self) -> dict[int, int]:
        run = self._run
        seen = pd.concat(
            [
                frame.loc[frame["path"].notna(), ["rank", column, "path"]].set_axis(["rank", "time", "path"], axis=1)
                for frame, column in (
                    (run.calls, "start_ns"),
                    (run.pulses, "time_ns"),
                    (run.phases, "time_ns"),
                    (run.batches, "time_ns"),
                )
            ]
        )
        newest = seen.loc[seen["time"] == seen.groupby("rank")["time"].transform("max")]
        return by_rank(newest.groupby("rank")["path"].max().astype("int64"))

    @functools.cached_property
    def _steps(self) -> dict[int, int]:
        run = self._run
        steps = pd.concat([run.calls[["rank", "step"]], run.pulses[["rank", "step"]]])
        return by_rank(steps.groupby("rank")["step"].max())
