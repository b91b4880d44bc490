"""Steps with more or fewer passes on some ranks: a divergence that shows itself only much later."""

from dataclasses import replace

import pandas as pd

from distdiag.analyzers.investigation.align import Departure, Kind
from distdiag.analyzers.investigation.divergence import Divergence, divergence_at
from distdiag.analyzers.investigation.loops import Labels
from distdiag.analyzers.investigation.streams import GroupCalls
from distdiag.run import Run


def at_odd_step(run: Run, calls: pd.DataFrame, group: GroupCalls, labels: Labels, d: Divergence) -> Divergence | None:
    """Return a divergence where it began, if that was a step with more or fewer passes on the odd ranks.

    A pass more has the calls of any other: they are paired with those of the others' next step, and what fails is
    the end of the run.
    """
    if d.made is None or d.expected is None:
        return None
    ours, theirs = labels.passes(d.expected.rank), labels.passes(d.made.rank)
    step = next((step for step in sorted(ours.keys() & theirs.keys()) if ours[step] != theirs[step]), None)
    if step is None or step >= min(d.made.step, d.expected.step):
        return None
    forwards, backwards = (theirs[step][n] - ours[step][n] for n in (0, 1))
    if not forwards or forwards != backwards:
        return None
    longer = d.stream if forwards > 0 else d.reference
    begun = sum(passes[0] for number, passes in ours.items() if number < step) + min(ours[step][0], theirs[step][0])
    position = next((n for n, label in enumerate(longer.labels) if label[-1] > begun), None)
    if position is None or position >= min(d.where.reference, d.where.odd):
        return None
    kind = Kind.EXTRA if forwards > 0 else Kind.LEFT_OUT
    found = divergence_at(
        run,
        calls,
        group,
        labels,
        Departure(reference=position, odd=position, kind=kind),
        reference=(d.expected.rank, d.reference),
        odd=(d.made.rank, d.stream),
        odd_ranks=d.odd,
        others=d.others,
        decided=d.decided,
    )
    return replace(found, passes=f"step {step}: {theirs[step][0]} forwards against {ours[step][0]}")
