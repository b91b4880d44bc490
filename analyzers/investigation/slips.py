"""Members of one group that stand at different numbers of it, where the calls between are not recorded.

Whoever is ahead went through operations that the others never completed: the calls were paired wrongly before, or
something stopped below the program. Different operations speak for the first.
"""

from collections.abc import Sequence

from distdiag.analyzers._wording import named, verb
from distdiag.analyzers.investigation.incident import Incident, Slip, Unexplained
from distdiag.analyzers.investigation.issued import in_group
from distdiag.analyzers.investigation.naming import Name
from distdiag.analyzers.investigation.scene import Scene
from distdiag.analyzers.investigation.waitfor import Wait, WaitKind

INSUFFICIENT = "insufficient-evidence"


def slipped(scene: Scene, waits: Sequence[Wait]) -> Incident | None:
    """Return what ranks at different numbers of one group come down to; None where there are none."""
    for behind in waits:
        later = [wait for wait in waits if _is_ahead(wait, behind)]
        if later:
            return _incident(scene, behind, min(later, key=lambda wait: wait.number))
    return None


def _is_ahead(wait: Wait, behind: Wait) -> bool:
    same = wait.kind is behind.kind is WaitKind.COLLECTIVE and wait.group == behind.group
    return same and wait.number > behind.number and not wait.waiters & behind.waiters


def _incident(scene: Scene, behind: Wait, ahead: Wait) -> Incident:
    calls = {**scene.calls_in(behind), **scene.calls_in(ahead)}
    ops = {rank: call.op for rank, call in calls.items()}
    distance = ahead.number - behind.number
    where = (
        f"{named(ahead.waiters)} {verb(ahead.waiters, 'is', 'are')} {distance} ahead of {named(behind.waiters)} "
        f"in {in_group(scene.group(behind))}"
    )
    if len(set(ops.values())) < 2:
        reason = f"{where}, in the same operation: the calls between are not in these logs"
        ranks = tuple(sorted(calls))
        return Incident(name=INSUFFICIENT, time_ns=behind.since_ns, basis=Unexplained(ranks=ranks, reason=reason))
    fewer = min((behind, ahead), key=lambda wait: len(wait.waiters))
    tie = len(behind.waiters) == len(ahead.waiters)
    return scene.incident(
        Name.SEQUENCE,
        behind,
        Slip(behind=behind, ahead=ahead, ops=ops),
        culprits=() if tie else tuple(sorted(fewer.waiters)),
        sites=scene.sites_of([behind, ahead]),
        site=None,
        evidence=(where,),
    )
