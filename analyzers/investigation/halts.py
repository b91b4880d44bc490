"""Devices that stopped, as an incident: their hosts went on, their peers went past."""

from collections.abc import Iterator

from distdiag.analyzers._wording import counted, named
from distdiag.analyzers.investigation.incident import Halts, Incident
from distdiag.analyzers.investigation.issued import group_name, issued
from distdiag.analyzers.investigation.rows import records
from distdiag.analyzers.investigation.scene import Scene
from distdiag.analyzers.investigation.waitfor import behind

DEVICE_STUCK = "device-stuck"


def halts(scene: Scene) -> Iterator[Incident]:
    """Yield one incident for all devices that stopped, the first one's operation named."""
    if not scene.halted:
        return
    first = min(scene.halted, key=lambda each: (each.head.since_ns, each.head.rank))
    culprits = tuple(each.head.rank for each in scene.halted)
    rows = scene.run.calls
    wanted = {(each.head.rank, each.head.call) for each in scene.halted}
    mine = rows[rows["rank"].isin(culprits) & rows["call"].isin([call for _, call in wanted])]
    calls = {int(row.rank): issued(scene.run, row) for row in records(mine) if (int(row.rank), int(row.call)) in wanted}
    call = calls[first.head.rank]
    sites = {rank: each.site for rank, each in calls.items() if each.site is not None}
    sites |= scene.sites_of(scene.waits)
    yield Incident(
        name=DEVICE_STUCK,
        time_ns=first.head.since_ns,
        basis=Halts(halted=scene.halted),
        culprits=culprits,
        victims=tuple(sorted(behind(scene.waits, culprits))),
        group=group_name(scene.run, first.head.group.partition("[")[0], first.head.members),
        members=first.head.members,
        seq=first.head.seq,
        op=first.head.op,
        step=call.step,
        site=call.site,
        sites=sites,
        evidence=tuple(
            f"rank {each.head.rank} did not complete {each.head.op} {each.head.seq}; {named(each.completed_by)} "
            f"completed it and {counted(each.behind - 1, 'more call')} of that group"
            for each in scene.halted[:4]
        ),
    )
