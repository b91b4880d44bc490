"""Logs made by hand: real files with real records, written the way a job would have written them.

    logs = Logs(world_size=3)
    for rank in logs:
        rank.all_reduce("train.py:10 step")
    logs[1].data_loading("data.py:5 load")
    run = logs.load(tmp_path)

A rank has a clock of its own that moves with what it does; ``at`` sets it, ``sleep`` moves it on. A call is
complete unless it says ``pending=True``. A rank has exited in an orderly way only if it says ``exit()``.
"""

import math
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path as FilePath
from typing import Any, Self

from distdiag import events
from distdiag.run import Run, load

WALL_NS = 1_700_000_000_000_000_000
"""Wall time at which every job of these logs begins."""
MONOTONIC_NS = 5_000_000_000_000
SECOND_NS = 1_000_000_000
CALL_SECONDS = 0.001
"""How long a call takes, unless it says otherwise."""
ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "uint8": 1}
"""Of types that do not take four."""
WORLD = "0"
"""Name that c10d gives the default group."""
AGREE_ON_ROOT = frozenset({"broadcast", "reduce", "gather", "scatter"})

Site = str | Sequence[str]
"""``file:line function``, or several such frames from the outermost to the innermost."""


class RankLog:
    """The log of one rank; every method appends records and returns the rank, or the number of the call."""

    def __init__(self, rank: int, logs: "Logs", host: str) -> None:
        self.rank = rank
        self.step = 0
        self.forwards = 0
        self.backwards = 0
        self.phase = ""
        self.thread = "MainThread"
        self.now_ns = MONOTONIC_NS
        self.calls = 0
        self.records: list[events.Event] = []
        self.members: dict[str, tuple[int, ...]] = {}
        self._paths: dict[tuple[str, ...], int] = {}
        self._signatures: dict[str, int] = {}
        self._digests: dict[int, tuple[int, int]] = {}
        self._sequences: dict[tuple[str, bool], int] = {}
        self._times_made: dict[str, int] = {}
        self._chains: dict[str, tuple[int, int]] = {}
        self._numbers: dict[str, int] = {}
        self.header = events.Header(
            schema=events.SCHEMA,
            run=logs.run,
            attempt=logs.attempt,
            rank=rank,
            local_rank=rank,
            world_size=logs.world_size,
            host=host,
            pid=1000 + rank,
            script="train.py",
            wall_ns=WALL_NS,
            monotonic_ns=MONOTONIC_NS,
            stall_after_seconds=60.0,
            max_bytes=256 << 20,
        )
        self.add(self.header)
        if logs.default_group:
            self.group(WORLD, range(logs.world_size), description="default_pg")

    def add(self, *records: events.Event) -> Self:
        """Append records as they are."""
        self.records += records
        return self

    def at(self, seconds: float) -> Self:
        """Set this rank's clock to a moment after the job began."""
        self.now_ns = MONOTONIC_NS + round(seconds * SECOND_NS)
        return self

    def sleep(self, seconds: float) -> Self:
        """Let time pass."""
        self.now_ns += round(seconds * SECOND_NS)
        return self

    def in_phase(self, phase: str) -> Self:
        """Name the phase that the following calls carry."""
        self.phase = phase
        return self

    def path(self, site: Site) -> int:
        """Return the number of a call site, writing it at first sight."""
        frames = tuple(_frames(site))
        if frames not in self._paths:
            self._paths[frames] = len(self._paths) + 1
            self.add(events.Path(path=self._paths[frames], frames=list(frames)))
        return self._paths[frames]

    def group(
        self, name: str, ranks: Sequence[int], *, description: str = "", timeout_seconds: float | None = 600.0
    ) -> Self:
        """Make a process group; one of this name that was there before is no more."""
        self.members[name] = tuple(ranks)
        self._times_made[name] = self._times_made.get(name, 0) + 1
        self._chains.pop(name, None)
        for p2p in (False, True):
            self._sequences.pop((name, p2p), None)
        return self.add(
            events.Group(
                group=name,
                description=description,
                ranks=list(ranks),
                backend="gloo",
                timeout_seconds=timeout_seconds,
                time_ns=self.now_ns,
            )
        )

    def call(
        self,
        op: str,
        site: Site = "train.py:1 main",
        *,
        group: str = WORLD,
        shape: Sequence[int] | None = (4,),
        dtype: str | None = "float32",
        seconds: float = CALL_SECONDS,
        pending: bool = False,
        error: str | None = None,
        p2p: bool = False,
        contended: bool = False,
        handling: str | None = None,
        **signature: Any,
    ) -> int:
        """Issue a call and, unless it is pending, let it end; return its number.

        ``signature`` takes more fields of ``events.Signature``: root, peer, tag, module, input_splits …
        """
        number = self._signature(op, site, group, shape, dtype, p2p, signature)
        seq, chain, path_chain = self._counted(number, group, p2p)
        self.calls += 1
        self.add(
            events.Call(
                call=self.calls,
                signature=number,
                seq=seq,
                step=self.step,
                forwards=self.forwards,
                backwards=self.backwards,
                phase=self.phase,
                start_ns=self.now_ns,
                chain=chain,
                path_chain=path_chain,
                contended=contended,
                handling=handling,
            )
        )
        return self.calls if pending else self.done(self.calls, seconds=seconds, error=error).calls

    def done(self, call: int, *, seconds: float = 0.0, error: str | None = None, clock: str = "wait") -> Self:
        """End a call that was pending, with an error if one is given."""
        self.sleep(seconds)
        return self.add(events.Done(call=call, end_ns=self.now_ns, clock=clock, failed=error is not None, error=error))

    def all_reduce(self, site: Site = "train.py:1 main", **options: Any) -> int:
        """Issue an all_reduce of four floats, unless ``options`` say otherwise."""
        return self.call("all_reduce", site, reduce_op="SUM", **options)

    def all_gather(self, site: Site = "train.py:1 main", **options: Any) -> int:
        """Issue an all_gather."""
        return self.call("all_gather", site, **options)

    def broadcast(self, site: Site = "train.py:1 main", *, root: int = 0, **options: Any) -> int:
        """Issue a broadcast."""
        return self.call("broadcast", site, root=root, **options)

    def barrier(self, site: Site = "train.py:1 main", **options: Any) -> int:
        """Issue a barrier."""
        return self.call("barrier", site, shape=None, dtype=None, **options)

    def send(self, peer: int, site: Site = "train.py:1 main", **options: Any) -> int:
        """Issue a send to a global rank."""
        return self.call("send", site, p2p=True, peer=peer, **{"tag": 0, **options})

    def recv(self, peer: int | None, site: Site = "train.py:1 main", **options: Any) -> int:
        """Issue a receive from a global rank, or from any."""
        return self.call("recv", site, p2p=True, peer=peer, **{"tag": 0, **options})

    def end_step(self, *, facts: dict[str, Any] | None = None, seconds: float = 0.01, **durations_ns: Any) -> Self:
        """End the step the rank is in; ``durations_ns`` takes ``data_ns``, ``forward_ns`` …"""
        self.sleep(seconds)
        start = self.now_ns - round(seconds * SECOND_NS)
        previous = [r.end_ns for r in self.records if isinstance(r, events.Step) and r.end_ns is not None]
        self.add(
            events.Step(
                step=self.step,
                start_ns=max(previous, default=min(start, self._first_call_ns(start))),
                end_ns=self.now_ns,
                calls=self.calls,
                forwards=self.forwards,
                backwards=self.backwards,
                facts=facts or {},
                **durations_ns,
            )
        )
        self.step += 1
        self.forwards = self.backwards = 0
        return self

    def begin_phase(self, phase: str, site: Site | None = "train.py:1 main", **facts: Any) -> int:
        """Begin a phase and return its number."""
        self._numbers["phase"] = number = self._numbers.get("phase", 0) + 1
        path = None if site is None else self.path(site)
        self.add(
            events.Phase(
                phase=phase, edge="begin", number=number, time_ns=self.now_ns, step=self.step, path=path, **facts
            )
        )
        return number

    def end_phase(self, phase: str, number: int, *, failed: bool = False) -> Self:
        """End a phase."""
        return self.add(
            events.Phase(phase=phase, edge="end", number=number, time_ns=self.now_ns, step=self.step, failed=failed)
        )

    def new_group(self, ranks: Sequence[int], site: Site = "train.py:1 main", *, inside: bool = False) -> Self:
        """Ask for a group; with ``inside`` the rank never comes out of it."""
        self._numbers["new_group"] = index = self._numbers.get("new_group", 0) + 1
        number = self.begin_phase("new_group", site, index=index - 1, ranks=list(ranks))
        if inside:
            return self
        self.sleep(CALL_SECONDS).end_phase("new_group", number)
        return self.group(str(index), ranks) if self.rank in ranks else self

    def batch(
        self,
        site: Site = "train.py:1 main",
        *,
        seconds: float = 0.001,
        pending: bool = False,
        exhausted: bool = False,
    ) -> Self:
        """Ask a data loader for a batch; with ``pending`` it never comes, with ``exhausted`` there is none."""
        number = self._numbers.get("batch", 0)
        self._numbers["batch"] = number + 1
        self.add(events.Batch(batch=number, edge="begin", time_ns=self.now_ns, step=self.step, path=self.path(site)))
        if pending:
            return self
        self.sleep(seconds)
        return self.add(
            events.Batch(batch=number, edge="end", time_ns=self.now_ns, step=self.step, exhausted=exhausted)
        )

    def data_loading(self, site: Site = "train.py:1 main", *, seconds: float = 30.0) -> Self:
        """Stay in the data loader, with signs of life."""
        self.batch(site, pending=True)
        return self.pulses(site, seconds=seconds, activity="data-loading")

    def pulse(
        self, site: Site | None = None, *, activity: str | None = None, waiting: Sequence[int] = (), **fields: Any
    ) -> Self:
        """Give a sign of life; ``fields`` are more of ``events.Pulse``."""
        path = None if site is None else self.path(site)
        return self.add(
            events.Pulse(
                time_ns=self.now_ns,
                step=self.step,
                phase=self.phase,
                path=path,
                activity=activity,
                waiting=list(waiting),
                calls=self.calls,
                **fields,
            )
        )

    def pulses(
        self,
        site: Site | None = None,
        *,
        seconds: float,
        activity: str | None = None,
        waiting: Sequence[int] = (),
        every: float = 10.0,
    ) -> Self:
        """Give signs of life for a while."""
        end = self.now_ns + round(seconds * SECOND_NS)
        while self.now_ns < end:
            self.sleep(min(every, (end - self.now_ns) / SECOND_NS))
            self.pulse(site, activity=activity, waiting=waiting)
        return self

    def fault(
        self, type: str, message: str = "", site: Site | None = None, *, where: str = "uncaught", **fields: Any
    ) -> Self:
        """Raise an exception; ``fault="out-of-memory"`` for one of that kind."""
        frames = _frames(site)
        record = {"fault": "exception", "frames": frames, **fields}
        path = None if site is None else self.path(site)
        return self.add(
            events.Fault(
                time_ns=self.now_ns, step=self.step, type=type, message=message, where=where, path=path, **record
            )
        )

    def exit(self, code: int = 0, *, where: str = "interpreter") -> Self:
        """End the process in a way that it could still record."""
        return self.add(events.Fault(fault="exit", time_ns=self.now_ns, step=self.step, where=where, code=code))

    def written(self) -> bytes:
        """Return the text of the log."""
        return b"".join(events.encode(record) for record in self.records)

    def _signature(
        self,
        op: str,
        site: Site,
        group: str,
        shape: Sequence[int] | None,
        dtype: str | None,
        p2p: bool,
        fields: dict[str, Any],
    ) -> int:
        path = self.path(site)
        shapes = [] if shape is None else [list(shape)]
        numel = sum(map(math.prod, shapes))
        made = self._times_made.get(group, 0)
        key = repr((op, path, group, made, shapes, dtype, p2p, self.thread, sorted(fields.items(), key=str)))
        if key not in self._signatures:
            self._signatures[key] = number = len(self._signatures) + 1
            root = fields.get("root") if op in AGREE_ON_ROOT else None
            agree = zlib.crc32(repr((op, dtype, numel, root)).encode())
            self._digests[number] = agree, zlib.crc32(repr(site).encode())
            self.add(
                events.Signature(
                    signature=number,
                    group=group,
                    op=op,
                    p2p=p2p,
                    dtype=dtype,
                    shapes=shapes,
                    size_bytes=ELEMENT_BYTES.get(dtype or "", 4) * numel,
                    path=path,
                    thread=self.thread,
                    agree=agree,
                    **fields,
                )
            )
        return self._signatures[key]

    def _counted(self, signature: int, group: str, p2p: bool) -> tuple[int, int, int]:
        """Return sequence number, chain and path chain of the next call."""
        agree, path_digest = self._digests[signature]
        sequence = self._sequences[group, p2p] = self._sequences.get((group, p2p), 0) + 1
        if p2p:  # members need not exchange the same messages, so none of them is in the chain
            return sequence, 0, 0
        chain, path_chain = self._chains.get(group, (0, 0))
        self._chains[group] = zlib.crc32(b"%d" % agree, chain), zlib.crc32(b"%d" % path_digest, path_chain)
        return sequence, *self._chains[group]

    def _first_call_ns(self, otherwise: int) -> int:
        return next((r.start_ns for r in self.records if isinstance(r, events.Call)), otherwise)


class Logs:
    """The logs of one job, by rank; iterating yields the ranks in order."""

    def __init__(
        self,
        world_size: int = 2,
        *,
        run: str = "job@host:29500",
        attempt: int = 0,
        ranks_per_host: int | None = None,
        default_group: bool = True,
    ) -> None:
        self.world_size = world_size
        self.run = run
        self.attempt = attempt
        self.default_group = default_group
        per_host = ranks_per_host or world_size
        self.ranks = {rank: RankLog(rank, self, f"node{rank // per_host}") for rank in range(world_size)}

    def __getitem__(self, rank: int) -> RankLog:
        return self.ranks[rank]

    def __iter__(self) -> Iterator[RankLog]:
        return iter(self.ranks.values())

    def only(self, *ranks: int) -> Iterator[RankLog]:
        """Yield some of the ranks."""
        return (self.ranks[rank] for rank in ranks)

    def but(self, *ranks: int) -> Iterator[RankLog]:
        """Yield all other ranks."""
        return (log for rank, log in self.ranks.items() if rank not in ranks)

    def write(self, directory: FilePath, *, without: Sequence[int] = ()) -> FilePath:
        """Write the logs, those of the ranks ``without`` left out, and return the directory."""
        directory.mkdir(parents=True, exist_ok=True)
        attempt = f".attempt{self.attempt}" if self.attempt else ""
        for rank, log in self.ranks.items():
            if rank not in without:
                (directory / f"rank{rank:05d}{attempt}.jsonl").write_bytes(log.written())
        return directory

    def load(self, directory: FilePath, *, without: Sequence[int] = ()) -> Run:
        """Write the logs and read them back as a run."""
        return load(self.write(directory, without=without))


def _frames(site: Site | None) -> list[str]:
    return [] if site is None else [site] if isinstance(site, str) else list(site)
