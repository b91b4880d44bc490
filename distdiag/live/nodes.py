"""What the agent of a host says of its ranks, once a second, in one small file that replaces the last."""

import os
from collections.abc import Collection
from pathlib import Path

import msgspec

from distdiag import events
from distdiag.launch_names import name_told
from distdiag.live.alarms import Alarm, Condition, Kind
from distdiag.live.deaths import Dead, dead_ranks
from distdiag.live.job import Job
from distdiag.live.slowness import OwnTime, own_times
from distdiag.live.snapshot import RankRow, rank_rows
from distdiag.live.standstill import awaits_others, limit_of, may_move, places_of
from distdiag.live.tailing import Writer
from distdiag.live.watch import Watch

SCHEMA = "distdiag.node/1"
FOLDER = Path(".distdiag", "nodes")
"""In the directory of logs; hidden, so that nobody takes it for one."""
ENDING = ".json"
ROWS = 4
"""Ranks of a host of which everything is told: those in most trouble."""
PLACES = 2
OWN_CONDITIONS = (Kind.DIVERGENCE, Kind.NON_FINITE, Kind.REPLICA_DESYNC, Kind.MEMORY, Kind.CHECKPOINT)
"""What one host can tell by itself; who stalls, died of whom or is slow only all of them together can."""


class NodeGroup(msgspec.Struct, kw_only=True, gc=False):
    """A process group as the ranks of one host know it."""

    name: str
    label: str
    members: str
    newest: int
    seqs: dict[int, int]
    """Number of each rank's last collective."""


class NodeSummary(msgspec.Struct, kw_only=True, gc=False):
    """The ranks of one host at one moment."""

    schema: str
    host: str
    run: str
    attempt: int
    wall_ns: int
    world_size: int
    ranks: str
    """In short, as in ``0-7``."""
    living: int
    moving: bool
    """Whether any of them may still move."""
    still_seconds: float
    """Of the living rank that moved last."""
    limit_seconds: float
    states: dict[str, int]
    step: int | None
    steps_per_second: float | None
    tokens_per_second: float | None
    remaining_seconds: float | None
    waiting: dict[int, tuple[str, str, int]]
    """Of ranks that wait in a collective: name and members of the group, and the number of the call."""
    free: list[int]
    """Living ranks that wait for nobody."""
    places: list[str]
    dead: list[Dead]
    own: dict[int, OwnTime]
    rows: list[RankRow]
    groups: list[NodeGroup]
    conditions: list[Condition]


class NodeAgent:
    """Watches the ranks of one host and sums them up."""

    def __init__(self, logs: Path, host: str) -> None:
        self.host = host
        self.watch = Watch(logs, explain=False)
        self.watch.follower.wanted = self._is_here
        self._here: dict[Writer, bool] = {}

    def look(self, now: float, wall_ns: int) -> NodeSummary | None:
        """Read what was appended and return the summary; None as long as there is no rank of this host."""
        self.watch.look(now, wall_ns)
        job = self.watch.job
        return summary_of(job, self.watch.alarms.active.values(), self.host, wall_ns) if job.ranks else None

    def _is_here(self, writer: Writer, path: Path) -> bool:
        """Return whether a log is of a process of this host, by its first line."""
        known = self._here.get(writer)
        if known is None:
            header = _header_of(path)
            if header is None:
                return False  # not yet written
            known = self._here[writer] = header.host == self.host
        return known


def publish(logs: Path, summary: NodeSummary) -> None:
    """Put a summary into a directory of logs; raises ``OSError`` where that is not possible."""
    folder = logs / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f".{summary.host}"
    hidden.write_bytes(_encoder.encode(summary))
    os.replace(hidden, folder / (summary.host + ENDING))  # whoever reads finds it whole


def decoded(data: bytes) -> NodeSummary | None:
    """Return a summary; None for what is none."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError):
        return None


def summary_of(job: Job, alarms: Collection[Alarm], host: str, wall_ns: int) -> NodeSummary:
    """Return the summary of the ranks of a job that one host watches."""
    living = job.living
    progress = job.progress()
    rows = sorted(rank_rows(job, alarms), key=lambda row: (-row.trouble, row.rank))
    header = next(iter(job.ranks.values())).header
    return NodeSummary(
        schema=SCHEMA,
        host=host,
        run=name_told(header) or "",
        attempt=max(state.attempt for state in job.ranks.values()),
        wall_ns=wall_ns,
        world_size=job.world_size,
        ranks=events.folded(list(job.ranks)),
        living=len(living),
        moving=any(may_move(job, state) for state in living),
        still_seconds=min((job.still(state) for state in living), default=0.0),
        limit_seconds=max((limit_of(state) for state in living), default=0.0),
        states={state: sum(row.state == state for row in rows) for state in {row.state for row in rows}},
        step=progress.step,
        steps_per_second=progress.steps_per_second,
        tokens_per_second=progress.tokens_per_second,
        remaining_seconds=progress.remaining_seconds,
        waiting=_waiting(job),
        free=[state.rank for state in living if not awaits_others(job, state)],
        places=places_of(job, (), missing=False)[:PLACES],
        dead=dead_ranks(job),
        own=own_times(job),
        rows=[msgspec.structs.replace(row, strip=(), spent={}) for row in rows[:ROWS]],
        groups=_groups(job),
        conditions=[alarm.condition for alarm in alarms if alarm.kind in OWN_CONDITIONS],
    )


def _waiting(job: Job) -> dict[int, tuple[str, str, int]]:
    waiting = {}
    for state in job.living:
        call = state.current_call()
        group = state.group_of(call) if call is not None else None
        if call is not None and group is not None and state.sequences.get(group.name, -1) >= call.seq:
            waiting[state.rank] = group.name, events.folded(group.members), call.seq
    return waiting


def _groups(job: Job) -> list[NodeGroup]:
    return [
        NodeGroup(
            name=group.name,
            label=group.label,
            members=events.folded(group.members),
            newest=group.newest,
            seqs={
                rank: state.sequences.get(group.name, group.start)
                for rank, state in job.ranks.items()
                if rank in group.members
            },
        )
        for group in job.groups
    ]


def _header_of(path: Path) -> events.Header | None:
    try:
        with path.open("rb") as file:
            record = events.decode(file.readline())
    except (OSError, msgspec.MsgspecError, ValueError):
        return None
    return record if isinstance(record, events.Header) else None


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(NodeSummary)
