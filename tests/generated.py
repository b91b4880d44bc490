"""Writes simulated jobs as logs of our own, and as dumps of PyTorch's flight recorder."""

import json
import pickle
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from distdiag import events
from tests.generator import WORLD, Group, Operation, Simulated

START_NS = 1_700_000_000_000_000_000
MONOTONIC_NS = 5_000_000_000_000
ISSUE_NS = 1_000_000
"""Between two operations of one host."""
TRANSFER_NS = 400_000
STALL_NS = 60_000_000_000
"""How long after the last operation a log of our own goes on."""
MAIN_SITE = "train/main.py:20 main"

_encoder = msgspec.json.Encoder()
_FLIGHT_NAMES = {
    "all_gather_into_tensor": "_all_gather_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
}
_FLIGHT_TYPES = {"bfloat16": "BFloat16", "float32": "Float"}
_LIBRARY_FRAMES = tuple(
    {"name": name, "filename": f"/usr/lib/python3.11/site-packages/torch/{file}", "line": line}
    for name, file, line in (
        ("all_reduce", "distributed/distributed_c10d.py", 3245),
        ("wrapper", "distributed/c10d_logger.py", 83),
        ("_call_impl", "nn/modules/module.py", 1775),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """An operation with its numbers and moments on one rank."""

    number: int
    op: Operation
    seq: int
    issued_ns: int
    ended_ns: int | None


def placed(run: Simulated, rank: int) -> Iterator[Placed]:
    """Yield what a rank issued, in order."""
    numbers: dict[tuple[str, bool], int] = {}
    skew = run.skews_ns[rank]
    for position, op in enumerate(run.programs[rank][: run.issued[rank]]):
        key = op.group.name, op.p2p
        numbers[key] = seq = numbers.get(key, 0) + 1
        issued_ns = skew + position * ISSUE_NS + rank % 97 * 1000
        ended_ns = issued_ns + TRANSFER_NS if position < run.completed[rank] else None
        yield Placed(number=position + 1, op=op, seq=seq, issued_ns=issued_ns, ended_ns=ended_ns)


# ---- logs of our own ------------------------------------------------------------------------------------------------
def write_logs(run: Simulated, directory: Path) -> Path:
    """Write one log for each rank and return the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for rank in range(run.job.shape.world_size):
        lines = _encoder.encode_lines(list(_log(run, rank)))
        (directory / f"rank{rank:05d}.jsonl").write_bytes(lines)
    return directory


def _log(run: Simulated, rank: int) -> Iterator[events.Event]:
    yield events.Header(
        schema=events.SCHEMA,
        run="generated@host:29500",
        attempt=0,
        rank=rank,
        world_size=run.job.shape.world_size,
        host=f"node{rank // run.job.ranks_per_host}",
        pid=1000 + rank,
        device="cuda",
        wall_ns=START_NS + run.skews_ns[rank],
        monotonic_ns=MONOTONIC_NS,
        stall_after_seconds=60.0,
        max_bytes=256 << 20,
    )
    for group in run.groups_of[rank]:
        yield events.Group(
            group=group.name,
            description=group.description,
            ranks=events.folded(group.members) if len(group.members) > 15 else list(group.members),
            backend="nccl",
            timeout_seconds=600.0,
            time_ns=MONOTONIC_NS,
        )
    signatures: dict[tuple[str, str, int, str, int | None, str], tuple[int, int]] = {}
    paths: dict[str, int] = {}
    chains: dict[str, int] = {}
    last: Placed | None = None
    pending: Placed | None = None
    for each in placed(run, rank):
        op = each.op
        if op.site not in paths:
            paths[op.site] = len(paths) + 1
            yield events.Path(path=paths[op.site], frames=[MAIN_SITE, op.site])
        key = (op.group.name, op.op, op.numel, op.dtype, op.peer, op.site)
        if key not in signatures:
            agree = zlib.crc32(repr(op.signature).encode())
            signatures[key] = len(signatures) + 1, agree
            yield _signature(op, signatures[key][0], agree, paths[op.site])
        number, agree = signatures[key]
        chain = chains[op.group.name] = zlib.crc32(agree.to_bytes(4, "little"), chains.get(op.group.name, 0))
        start_ns = MONOTONIC_NS + each.issued_ns - run.skews_ns[rank]
        yield events.Call(
            call=each.number,
            signature=number,
            seq=each.seq,
            step=op.step,
            forwards=1,
            backwards=int(op.phase == "backward"),
            phase=op.phase,
            start_ns=start_ns,
            chain=chain,
            path_chain=paths[op.site],
        )
        if each.ended_ns is not None:
            yield events.Done(call=each.number, end_ns=start_ns + TRANSFER_NS, clock="device")
        elif pending is None:
            pending = each
        last = each
    yield from _end(run, rank, last, pending, paths)


def _end(
    run: Simulated, rank: int, last: Placed | None, pending: Placed | None, paths: dict[str, int]
) -> Iterator[events.Event]:
    now_ns = MONOTONIC_NS + (last.issued_ns - run.skews_ns[rank] if last is not None else 0) + ISSUE_NS
    if run.finished:
        yield events.Fault(fault="exit", time_ns=now_ns, where="interpreter", code=0)
        return
    step = last.op.step if last is not None else 0
    for moment in range(now_ns, now_ns + STALL_NS + 1, STALL_NS // 4):
        yield events.Pulse(
            time_ns=moment,
            step=step,
            path=paths[last.op.site] if last is not None else None,
            waiting=[pending.number] if pending is not None else [],
            calls=last.number if last is not None else 0,
        )


def _signature(op: Operation, number: int, agree: int, path: int) -> events.Signature:
    return events.Signature(
        signature=number,
        group=op.group.name,
        op=op.op,
        p2p=op.p2p,
        dtype=op.dtype,
        shapes=[[op.numel]],
        size_bytes=2 * op.numel,
        peer=op.peer,
        tag=0 if op.p2p else None,
        path=path,
        device="cuda",
        agree=agree,
    )


# ---- dumps of the flight recorder -----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How dumps look."""

    version: str = "2.10"
    json: bool = False
    backend: str = "nccl"
    ring: int = 2000
    """Entries kept."""
    only_active: bool = False
    frames: bool = True
    prefix: str = "nccl_trace_rank_"
    file_suffix: str = ""


def write_dumps(run: Simulated, directory: Path, form: Format | None = None) -> Path:
    """Write one dump for each rank and return the directory."""
    form = form or Format()
    directory.mkdir(parents=True, exist_ok=True)
    for rank in range(run.job.shape.world_size):
        content = dump(run, rank, form)
        data = json.dumps(content).encode() if form.json else pickle.dumps(content, protocol=2)
        (directory / f"{form.prefix}{rank}{form.file_suffix}").write_bytes(data)
    return directory


def dump(run: Simulated, rank: int, form: Format) -> dict[str, Any]:
    """Return the dump of one rank as PyTorch makes it."""
    groups = run.groups_of[rank]
    ids = {group.name: number for number, group in enumerate(groups)}
    entries, progress = [], {group.name: [-1, -1] for group in groups}
    frames: dict[str, list[dict[str, Any]]] = {}
    messages: dict[str, int] = {}
    collectives: dict[str, int] = {}
    for each in placed(run, rank):
        name = each.op.group.name
        (messages if each.op.p2p else collectives)[name] = each.seq
        progress[name][0] = each.seq
        if each.ended_ns is not None:
            progress[name][1] = each.seq
        entry = _entry(each, rank, ids[name], form)
        entry |= {"collective_seq_id": collectives.get(name, 0), "p2p_seq_id": messages.get(name, 0)}
        if form.frames and not form.json:
            entry["frames"] = frames.setdefault(each.op.site, _frames(each.op.site))
        entries.append(entry)
    kept = [entry for entry in entries if not (form.only_active and entry["state"] == "completed")][-form.ring :]
    status = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    return {
        "version": form.version,
        "comm_lib_version": "2.27.3",
        "pg_config": {g.name: {"name": g.name, "desc": g.description, "ranks": str(list(g.members))} for g in groups},
        "pg_status": {
            str(ids[name]): dict(zip(status, (enqueued, -1, done), strict=True))
            for name, (enqueued, done) in progress.items()
        },
        "entries": kept,
    }


def _entry(each: Placed, rank: int, pg_id: int, form: Format) -> dict[str, Any]:
    op, missing = each.op, 0 if form.json else None
    inputs, outputs = _sizes(op)
    done = each.ended_ns is not None
    return {
        "record_id": each.number - 1,
        "pg_id": pg_id,
        "process_group": [op.group.name, op.group.description] if form.json else (op.group.name, op.group.description),
        "thread_name": "pt_autograd_0" if op.phase == "backward" else "pt_main_thread",
        "thread_id": "139637976729408",
        "op_id": each.number,
        "profiling_name": f"{form.backend}:{_flight_name(op, rank)}",
        "time_created_ns": START_NS + each.issued_ns,
        "input_sizes": [inputs],
        "input_dtypes": [_FLIGHT_TYPES[op.dtype]],
        "output_sizes": [outputs],
        "output_dtypes": [_FLIGHT_TYPES[op.dtype]],
        "state": "completed" if done else "scheduled",
        "time_discovered_started_ns": missing,
        "time_discovered_completed_ns": START_NS + each.ended_ns if each.ended_ns is not None else missing,
        "retired": done,
        "timeout_ms": 600_000,
        "is_p2p": op.p2p,
    }


def _sizes(op: Operation) -> tuple[list[int], list[int]]:
    size = len(op.group.members)
    if op.op == "all_gather_into_tensor":
        return [op.numel], [op.numel * size]
    if op.op == "reduce_scatter_tensor":
        return [op.numel * size], [op.numel]
    return [op.numel], [op.numel]


def _flight_name(op: Operation, rank: int) -> str:
    if op.peer is None:
        return _FLIGHT_NAMES.get(op.op, op.op)
    here, there = op.group.members.index(rank), op.group.members.index(op.peer)
    return f"{op.op} {here}{'->' if op.op == 'send' else '<-'}{there}"


def _frames(site: str) -> list[dict[str, Any]]:
    own = []
    for frame in (site, MAIN_SITE):
        place, _, name = frame.partition(" ")
        file, _, line = place.rpartition(":")
        own.append({"name": name, "filename": f"/job/{file}", "line": int(line)})
    return [*_LIBRARY_FRAMES, *own]


__all__ = ["WORLD", "Format", "Group", "Placed", "dump", "placed", "write_dumps", "write_logs"]
