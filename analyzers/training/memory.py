"""Memory of ranks over their steps: series, limits and steps that are left."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from distdiag.analyzers.training.series import Growth, steady_growth
from distdiag.run import Run

MIB = 1 << 20
GIB = 1 << 30
FEWEST_STEPS = 20
SOON = 50
"""Growth that would take more than so many times the steps seen so far to reach the limit is no matter of this run."""
LARGE_SHARE = 0.2
"""Growth by such a share of what it began with is one whatever the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """Memory of one rank that grows without end."""

    rank: int
    growth: Growth
    steps_left: int | None
    """Until the limit, None where it is not known."""

    def in_words(self) -> str:
        """Return the pace."""
        return f"rank {self.rank}: {size(self.growth.per_step)} a step over {self.growth.steps} steps"

    @property
    def matters(self) -> bool:
        """Return whether it will end this run, or is large already."""
        soon = self.steps_left is not None and self.steps_left < SOON * max(1, self.growth.steps)
        return soon or self.growth.last - self.growth.first >= LARGE_SHARE * self.growth.first


def host_leaks(run: Run, *, at_least: float, share: float) -> list[Leak]:
    """Return the ranks whose own resident memory grows: that of files and of other processes does not count."""
    memory = run.memory[run.memory["rss_bytes"].notna()]
    own = memory["rss_bytes"].astype("float64") - memory["shared_bytes"].fillna(0).astype("float64")
    own += memory["workers_bytes"].fillna(0).astype("float64")
    limit = memory["cgroup_limit_bytes"].astype("float64") - memory["cgroup_bytes"].astype("float64")
    room = np.fmin(limit, memory["host_available_bytes"].astype("float64"))
    return _leaks(memory.assign(value=own, room=room), at_least, share)


def device_leaks(run: Run, *, at_least: float, share: float) -> list[Leak]:
    """Return the ranks whose memory in use on the device grows."""
    memory = run.memory[run.memory["allocated_bytes"].notna()]
    value = memory["allocated_bytes"].astype("float64")
    room = memory["device_bytes"].astype("float64") - memory["peak_allocated_bytes"].astype("float64")
    return _leaks(memory.assign(value=value, room=room), at_least, share)


def _leaks(memory: pd.DataFrame, at_least: float, share: float) -> list[Leak]:
    found = []
    for rank, rows in memory.sort_values("time_ns").groupby("rank"):
        last = rows.drop_duplicates("step", keep="last")
        if len(last) == 0 or int(last["step"].max()) - int(last["step"].min()) < FEWEST_STEPS:
            continue
        steps, values = (last[name].to_numpy(dtype=np.float64) for name in ("step", "value"))
        growth = steady_growth(steps, values, at_least=at_least, share=share)
        if growth is not None:
            room = float(last["room"].iloc[-1])
            left = int(max(0.0, room) / growth.per_step) if np.isfinite(room) else None
            found.append(Leak(rank=int(str(rank)), growth=growth, steps_left=left))
    return found


def size(value: float) -> str:
    """Return bytes as a reader wants them."""
    return f"{value / GIB:.2f} GiB" if abs(value) >= GIB else f"{value / MIB:.1f} MiB"
