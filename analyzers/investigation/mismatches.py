"""Calls whose arguments do not fit together, though each was issued where it should be: splits, kinds, sizes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from distdiag.analyzers.investigation.divergence import Divergence
from distdiag.analyzers.investigation.fits import Misfit, misfits
from distdiag.analyzers.investigation.incident import Incident
from distdiag.analyzers.investigation.issued import Issued, group_name
from distdiag.analyzers.investigation.naming import Name
from distdiag.analyzers.investigation.paths import own_line
from distdiag.analyzers.investigation.reductions import ReductionMismatch, reduction_mismatches
from distdiag.analyzers.investigation.sizes import SizeMismatch, told_sizes
from distdiag.analyzers.investigation.splits import SplitMismatch, split_mismatches
from distdiag.run import Run

Mismatch = Misfit | ReductionMismatch | SizeMismatch | SplitMismatch


def of_splits(run: Run, calls: pd.DataFrame, stuck: frozenset[int]) -> Iterator[Incident]:
    """Yield exchanges in which a rank does not send what another expects."""
    for mismatch in split_mismatches(run, calls):
        culprits = () if mismatch.culprit is None else (mismatch.culprit,)
        call = mismatch.calls[mismatch.culprit] if mismatch.culprit is not None else mismatch.receiver
        shared = {frame for each in mismatch.calls.values() for frame in each.path[:-1]}
        yield _incident(
            run,
            Name.SPLIT if mismatch.lists else Name.SHAPE,
            mismatch,
            stuck,
            call=call,
            culprits=culprits,
            site=own_line(call.path, shared - set(call.path[-1:])),
            sites={rank: own_line(each.path, ()) for rank, each in mismatch.calls.items()},
        )


def of_reductions(
    run: Run, several: pd.DataFrame, stuck: frozenset[int], *, beside: Iterable[Divergence]
) -> Iterator[Incident]:
    """Yield reductions that members asked for in several kinds, but for those ``beside`` a divergence before them."""
    parted = {each.group.key: each for each in beside if not each.weak}
    for mismatch in reduction_mismatches(run, several):
        divergence = parted.get(mismatch.key)
        if divergence is not None and divergence.seq <= mismatch.seq:
            continue  # calls that were never meant for each other
        call = _first_of(mismatch.calls, mismatch.odd)
        site = call.site if mismatch.odd else None
        yield _incident(run, Name.OP, mismatch, stuck, call=call, culprits=mismatch.odd, site=site)


def of_sizes(run: Run, mismatches: Iterable[SizeMismatch], stuck: frozenset[int]) -> Iterator[Incident]:
    """Yield calls whose sizes cannot be."""
    for mismatch in mismatches:
        everybody = len(mismatch.odd) == len(mismatch.calls)
        culprits = () if everybody else mismatch.odd
        call = _first_of(mismatch.calls, mismatch.odd)
        yield _incident(run, Name.SHAPE, mismatch, stuck, call=call, culprits=culprits, site=call.site)


def of_misfits(run: Run, stuck: frozenset[int]) -> Iterator[Incident]:
    """Yield messages that do not fit the room of their receivers; which side is wrong, two cannot tell."""
    for misfit in misfits(run):
        found = _incident(
            run,
            Name.DTYPE if misfit.of_type else Name.SHAPE,
            misfit,
            stuck,
            call=misfit.receiver,
            culprits=(),
            site=None if misfit.changed is None else misfit.calls[misfit.changed].site,
        )
        yield replace(found, evidence=(misfit.before,))


def of_told_sizes(run: Run, stuck: frozenset[int]) -> Iterator[Incident]:
    """Yield sizes that a rank's backend says do not fit."""
    for sizes in told_sizes(run):
        yield Incident(
            name=Name.SHAPE,
            time_ns=sizes.time_ns,
            basis=sizes,
            victims=tuple(sorted(stuck | {sizes.rank})),
            sites=sizes.sites,
        )


def _first_of(calls: Mapping[int, Issued], odd: Sequence[int]) -> Issued:
    return calls[odd[0] if odd else min(calls)]


def _incident(
    run: Run,
    name: str,
    mismatch: Mismatch,
    stuck: frozenset[int],
    *,
    call: Issued,
    culprits: tuple[int, ...],
    site: str | None,
    sites: Mapping[int, str | None] | None = None,
) -> Incident:
    """Return a mismatch that ``call`` stands for; without ``sites`` each rank's is the line of its own call."""
    rows = run.calls[run.calls["group_key"] == mismatch.key]
    members: tuple[int, ...] | None = rows["members"].iloc[0] if len(rows) else None
    known = {rank: each.site for rank, each in mismatch.calls.items()} if sites is None else sites
    return Incident(
        name=name,
        time_ns=mismatch.time_ns,
        basis=mismatch,
        culprits=culprits,
        victims=tuple(sorted((stuck | set(mismatch.calls)) - set(culprits))),
        group=group_name(run, mismatch.key.partition("[")[0], members),
        members=members,
        seq=mismatch.seq,
        op=call.op,
        step=call.step,
        site=site,
        sites={rank: line for rank, line in known.items() if line is not None},
    )
