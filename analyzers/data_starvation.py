"""All ranks wait for their data.

What it means
    The data loaders give batches more slowly than the model takes them: every rank stands still in each step, and no
    rank is slower than another. More processors for computing would change nothing.

How it is found
    Waiting for data is at least 30 % of the step, and 10 ms, on the median rank, in at least 80 % of the steps; or it
    is that in at least 5 steps, and these waits are 30 % of the job's time. The first twenty steps do not count: caches
    are cold then and workers start. Where ranks wait so since one moment only, ``step-time-change`` says it.

What to do
    More workers (``num_workers``) and prefetching (``prefetch_factor``), cheaper decoding, files in a faster place.
"""

from collections.abc import Iterator

import numpy as np

from distdiag.analyzers._wording import counted, named, seconds
from distdiag.analyzers.investigation.paths import short
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.slowness.judged import INPUT, judge
from distdiag.analyzers.slowness.sites import site_of_batches
from distdiag.analyzers.slowness.telling import gained, percent
from distdiag.analyzers.step_time_change import changes_of_data
from distdiag.findings import Finding, Severity
from distdiag.run import Run

CODE = "DD212"
NAME = "data-starvation"
COLD_STEPS = 20
ENOUGH_STEPS = 10
LONG_SHARE = 0.3
LEAST_NS = 10e6
PERSISTENT = 0.8
ENOUGH_PAUSES = 5
"""Fewer are the beginnings of epochs, in which workers start."""


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding if the ranks of a role wait for data most of the time."""
    judged = judge(run)
    if any(judged.late_by(INPUT)):
        return
    by_turns = [moving for moving in judged.moving if moving.part == "data"]
    who = "Now this and now that rank gets its batch last, as where they wait for one another"
    for grid in judged.roles:
        warm = grid.steps >= COLD_STEPS
        if warm.sum() < ENOUGH_STEPS:
            continue
        data, step = np.median(grid["data_ns"], axis=0)[warm], grid.step_ns[warm]
        long = (data >= LONG_SHARE * step) & (data >= LEAST_NS)
        lasting = bool(long.mean() >= PERSISTENT)
        if not lasting and (long.sum() < ENOUGH_PAUSES or data[long].sum() < LONG_SHARE * step.sum()):
            continue
        before = [grid.steps[warm] < (each.step or 0) for each in changes_of_data(run)]
        if any(not long[steps].any() for steps in before):
            continue
        site = site_of_batches(run)
        at = f" ({short(site)})" if site else ""
        if lasting:
            each, whole = float(np.median(data)), float(np.median(step))
            often = f"{seconds(each)} of each {seconds(whole)} step for their data loaders{at}"
        else:
            each, whole = float(data[long].sum() / len(step)), float(step.mean())
            often = f"{seconds(float(np.median(data[long])))} at a time for their data loaders{at}, in "
            often += f"{long.sum()} of {counted(len(step), 'step')}"
        yield Finding(
            code=CODE,
            name=NAME,
            severity=Severity.WARNING,
            summary=f"{named(grid.ranks)} wait {often}\n{who if by_turns else 'No rank is slower than another'}; "
            f"{gained(each, whole, mean=not lasting)}, if batches were there in time.",
            victims=grid.ranks,
            site=site,
            cause="data",
            evidence=(
                f"in {counted(int(warm.sum()), 'step')} after the first {COLD_STEPS}, waiting for data took "
                f"{percent(np.quantile(data / step, 0.1))} to {percent(np.quantile(data / step, 0.9))} of them",
                data_in_words(run),
            ),
            action=(
                "give the data loader more workers (num_workers) and let them fetch ahead (prefetch_factor)",
                *(
                    ()
                    if lasting
                    else ("look at what comes only now and then: a next file, a next shard, a full buffer",)
                ),
                *(("look at what they share: a lock, one disk, one server, the cores of a host",) if by_turns else ()),
                "time one sample: reading, decoding and transforming it apart",
            ),
            lost_share=each / whole,
        )
