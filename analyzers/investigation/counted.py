"""Ranks of one program issue a line's calls equally often in each step; who does not is behind a circle of waiting.

A call left out of a group whose calls are all alike is paired with the next one, and nobody notices. What stands still
in the end is a circle: one member waits in the group for a call that the other believes to have made. The group's own
streams cannot tell the two members apart, but others run the same line in groups of their own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from distdiag.analyzers._wording import counted, named
from distdiag.analyzers.investigation.incident import Incident, Miscount
from distdiag.analyzers.investigation.issued import Issued
from distdiag.analyzers.investigation.naming import Name
from distdiag.analyzers.investigation.paths import own_line, shared_frames
from distdiag.analyzers.investigation.scene import Scene
from distdiag.analyzers.investigation.waitfor import Wait, WaitKind

LEAST_PEERS = 2
"""Other ranks with one count against one rank's are a majority; a single other rank is not."""
FIRST_CALL = 1
"""Logs that begin with a later one have lost what was before."""
ALL_STEPS = -1
"""Stands for the whole run where no step ended."""

Counts = Mapping[int, int]
"""Calls by step, for the steps that a rank has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Odd:
    """A rank that issued a line's calls more or less often than the others in one step."""

    rank: int
    step: int
    count: int
    usual: int
    peers: tuple[int, ...]


def miscounted(scene: Scene, cycle: Sequence[Wait]) -> Incident | None:
    """Return the rank that left a call out, or made one too many, where that is behind a circle and unambiguous."""
    found: dict[int, Incident] = {}
    for wait in cycle:
        calls = scene.calls_in(wait)
        if wait.kind is not WaitKind.COLLECTIVE or not calls or wait.number < 1:
            continue
        for odd in _odd_ranks(scene, cycle, wait, next(iter(calls.values()))):
            found.setdefault(odd.rank, _incident(scene, wait, next(iter(calls.values())), odd))
    return next(iter(found.values())) if len(found) == 1 else None


def _odd_ranks(scene: Scene, cycle: Sequence[Wait], wait: Wait, call: Issued) -> Iterator[_Odd]:
    """Yield who missed a call of the kind that ``wait`` is in, or else who of those in it made one too many."""
    by_rank = _counts(scene, call)
    missed = [
        odd
        for rank in sorted(wait.absent)
        if (odd := _compared(rank, by_rank))
        and odd.count < odd.usual
        and _is_where_others_were(scene, cycle, wait, odd)
    ]
    if missed:
        yield from missed
    elif len(wait.waiters) == 1:
        (rank,) = wait.waiters
        mine = by_rank.get(rank, {})
        if ALL_STEPS not in mine:  # without steps, one call more is the same as another order of the last two
            # The step that still goes on counts, too, once it has more calls than the others' whole step.
            odd = _compared(rank, {**by_rank, rank: {**mine, call.step: _so_far(scene, call)}})
            if odd is not None and odd.count > odd.usual:
                yield odd


def _counts(scene: Scene, call: Issued) -> dict[int, Counts]:
    """Return how many calls like ``call`` each rank issued in each step that it ended."""
    calls = scene.run.calls
    sizes = _alike(scene, call).groupby(["rank", "step"]).size()
    begun = calls.groupby("rank").agg(first=("step", "min"), last=("step", "max"), call=("call", "min"))
    found: dict[int, Counts] = {}
    for rank in sizes.index.get_level_values("rank").unique().tolist():
        first, last, oldest = begun.loc[rank].tolist()
        if first == last:
            found[rank] = {ALL_STEPS: int(sizes.get((rank, first), 0))} if oldest <= FIRST_CALL else {}
            continue
        # The step that a log begins in may have lost its beginning, and the one that it ends in goes on.
        steps = range(first + (oldest > FIRST_CALL), last)
        found[rank] = {step: int(sizes.get((rank, step), 0)) for step in steps}
    return found


def _alike(scene: Scene, call: Issued) -> pd.DataFrame:
    """Return the calls of all ranks that the same line made, with the same payload, in whatever group."""
    calls, paths = scene.run.calls, scene.run.paths
    path = next((number for number, frames in paths.items() if frames == call.path), 0)
    return calls[(calls["op"] == call.op) & (calls["numel"] == call.numel) & (calls["path"] == path)]


def _so_far(scene: Scene, call: Issued) -> int:
    alike = _alike(scene, call)
    return int(((alike["rank"] == call.rank) & (alike["step"] == call.step)).sum())


def _is_where_others_were(scene: Scene, cycle: Sequence[Wait], wait: Wait, odd: _Odd) -> bool:
    """Return whether a rank that is a call behind is not also one ahead: then it has another order, and left none out.

    Ended steps hold all of their calls whatever the order.
    """
    if odd.step != ALL_STEPS:
        return True
    ahead = (scene.calls_in(other).get(odd.rank) for other in cycle if odd.rank in other.waiters)
    blocking = next((call for call in ahead if call is not None), None)
    if blocking is None:
        return False
    by_rank = _counts(scene, blocking)
    mine, peers = by_rank[odd.rank].get(ALL_STEPS), set(odd.peers) - wait.waiters
    return len(peers) >= LEAST_PEERS and all(by_rank.get(peer, {}).get(ALL_STEPS) == mine for peer in peers)


def _compared(rank: int, by_rank: Mapping[int, Counts]) -> _Odd | None:
    """Return the first step in which a rank's count is not that of most ranks whose counts were its own until then."""
    mine, before = by_rank.get(rank, {}), dict[int, int]()
    for step, count in mine.items():
        peers = {
            other: counts[step]
            for other, counts in by_rank.items()
            if other != rank and step in counts and all(counts.get(n) == value for n, value in before.items())
        }
        usual = max(set(peers.values()), key=list(peers.values()).count, default=count)
        agreeing = tuple(other for other, value in peers.items() if value == usual)
        # Stages may have different layers: without a common past, only what all others do is the rule.
        enough = 2 * len(agreeing) > len(peers) if before else len(agreeing) == len(peers)
        if usual != count:
            certain = enough and len(agreeing) >= LEAST_PEERS
            return _Odd(rank=rank, step=step, count=count, usual=usual, peers=agreeing) if certain else None
        before[step] = count
    return None


def _incident(scene: Scene, wait: Wait, call: Issued, odd: _Odd) -> Incident:
    step = None if odd.step == ALL_STEPS else odd.step
    at = "" if step is None else f" in step {step}"
    return scene.incident(
        Name.SEQUENCE,
        wait,
        Miscount(call=call, rank=odd.rank, count=odd.count, usual=odd.usual, peers=odd.peers),
        culprits=(odd.rank,),
        step=step,
        site=own_line(call.path, shared_frames(scene.run.paths.values())),
        sites=scene.sites_of([wait]),
        evidence=(f"{named(odd.peers)} issued {counted(odd.usual, 'call')} like it{at}, rank {odd.rank} {odd.count}",),
    )
