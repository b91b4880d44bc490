"""Memory of ranks over their steps: series, limits, steps that are left, and what is said of memory that grows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from distdiag.analyzers._wording import named
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.training.series import Growth, steady_growth
from distdiag.findings import Finding, Severity
from distdiag.run import Run

MIB = 1 << 20
GIB = 1 << 30
FEWEST_STEPS = 20
SOON = 50
"""Growth that would take more than so many times the steps seen so far to reach the limit is no matter of this run."""
MOST_TOLD = 8
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


def of_leaks(
    run: Run, leaks: Sequence[Leak], *, code: str, name: str, where: str, look_for: str, compare: str
) -> Iterator[Finding]:
    """Yield one finding for the ranks whose memory ``where`` grows; none without leaks."""
    if not leaks:
        return
    ranks = tuple(leak.rank for leak in leaks)
    first, second = _sentences(leaks, f"the memory of the {where}", len(run.ranks))
    yield Finding(
        code=code,
        name=name,
        severity=Severity.WARNING if any(leak.matters for leak in leaks) else Severity.INFO,
        summary=f"the {where} memory of {named(ranks)} {first}\n{second}",
        culprits=ranks if len(leaks) < len(run.ranks) else (),
        step=min(leak.growth.first_step for leak in leaks),
        evidence=(*(leak.in_words() for leak in leaks[:MOST_TOLD]), data_in_words(run)),
        action=(f"look on {named(ranks)} for {look_for}", compare),
    )


def _sentences(leaks: Sequence[Leak], what: str, ranks: int) -> tuple[str, str]:
    """Return two sentences on ranks whose memory grows: how much and where, and when it ends."""
    worst = max(leaks, key=lambda leak: leak.growth.per_step)
    growth = worst.growth
    others = ranks - len(leaks)
    first = (
        f"grows by {size(growth.per_step)} a step: from {size(growth.first)} in step {growth.first_step} to "
        f"{size(growth.last)} in step {growth.last_step}"
    )
    if others:
        first += f"; on the other {others} it does not" if others > 1 else "; on the other one it does not"
    lefts = [leak.steps_left for leak in leaks if leak.steps_left is not None]
    if not lefts:
        return first, "What limit it has is not known."
    return first, f"At this pace {what} lasts for about {min(lefts):,} more steps."


def size(value: float) -> str:
    """Return bytes as a reader wants them."""
    return f"{value / GIB:.2f} GiB" if abs(value) >= GIB else f"{value / MIB:.1f} MiB"
