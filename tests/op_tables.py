"""Tables of measured operations for tests: steps of a 1F1B pipeline played out by an event loop of its own.

The player knows nothing of the simulator it tests: each worker runs its schedule in order, and waits where the
schedule says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd

FORWARD, BACKWARD = "forward-compute", "backward-compute"
MESSAGE, GATHER, SCATTER, CLIP, OPTIMIZER, LAYERNORM, EMBEDDING = 0.001, 0.02, 0.04, 0.005, 0.01, 0.0004, 0.008
"""Seconds that operations take by themselves."""

Pass = tuple[str, int, int]
"""A forward or backward pass: which of both, microbatch, chunk."""
Cost = Callable[[int, int, int, int], float]
"""Seconds of a forward pass of (step, data-parallel rank, stage, microbatch); a backward pass takes twice as long."""


def even(step: int, dp: int, stage: int, microbatch: int) -> float:
    """All the same."""
    del step, dp, stage, microbatch
    return 0.1


Pause = Callable[[int, int, int], float]
"""Seconds that the garbage collector takes of (step, data-parallel rank, stage)."""


def never(step: int, dp: int, stage: int) -> float:
    """No pause."""
    del step, dp, stage
    return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The size of a job."""

    dp: int = 2
    stages: int = 4
    microbatches: int = 8
    steps: int = 6
    chunks: int = 1
    """Parts of the model on each stage."""
    numbered: bool = True
    """Computations say which microbatch they are of."""


def operations(cost: Cost = even, shape: Shape | None = None, pause: Pause = never) -> pd.DataFrame:
    """Return a table with the columns of such files."""
    shape = shape or Shape()
    rows = [row for step in range(shape.steps) for row in _step(cost, shape, step, pause)]
    frame = pd.DataFrame(rows)
    frame["seq_id"] = (
        frame.sort_values("start_ts", kind="stable").groupby(["dp_rank", "stage", "step", "optype"]).cumcount()
    )
    frame["rank"] = frame["stage"] * shape.dp + frame["dp_rank"]
    return frame


def write(frame: pd.DataFrame, path: Path, meta: Mapping[str, object] | None = None) -> Path:
    """Write a table as the kind of file that its name says, with the facts of the job beside it."""
    connection = duckdb.connect()
    connection.register("written", frame)
    kind = "(FORMAT parquet)" if path.suffix == ".parquet" else "(FORMAT csv, HEADER)"
    connection.execute(f"COPY written TO '{path}' {kind}")
    if meta is not None:
        name = f"{path.stem.replace('trace', 'meta')}.yaml"
        path.with_name(name).write_text("".join(f"{key}: {value}\n" for key, value in meta.items()))
    return path


def schedule(stage: int, shape: Shape) -> list[Pass]:
    """Return the computations of a stage in 1F1B order, with several chunks of the model the interleaved one."""
    stages, chunks = shape.stages, shape.chunks
    count = shape.microbatches * chunks

    def virtual(op: str, number: int) -> Pass:
        if chunks == 1:
            return op, number, 0
        chunk = number // stages % chunks
        microbatch = number // (stages * chunks) * stages + number % stages
        return op, microbatch, chunk if op == FORWARD else chunks - 1 - chunk

    early = stages - 1 - stage if chunks == 1 else (stages - 1 - stage) * 2 + (chunks - 1) * stages
    warm = min(early, count)
    order = [virtual(FORWARD, number) for number in range(warm)]
    for number in range(count - warm):
        order += [virtual(FORWARD, warm + number), virtual(BACKWARD, number)]
    return order + [virtual(BACKWARD, number) for number in range(count - warm, count)]


def _step(cost: Cost, shape: Shape, step: int, pause: Pause) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []

    def add(op: str, dp: int, stage: int, start: float, end: float, microbatch: int = -1, chunk: int = -1) -> None:
        known = shape.numbered and microbatch >= 0
        rows.append(
            {
                "dp_rank": dp,
                "stage": stage,
                "step": step,
                "optype": op,
                "start_ts": start,
                "duration": end - start,
                "mc": chunk if known else -1,
                "mb_id": microbatch if known else -1,
                "gmc": chunk * shape.stages + stage if known else -1,
            }
        )

    ready: dict[tuple[int, int], float] = {}
    for dp in range(shape.dp):
        for stage in range(shape.stages):
            add("params-all-gather", dp, stage, 0.0, GATHER)
        ready |= {(dp, stage): end for stage, end in enumerate(_computations(cost, shape, step, dp, add))}
    _tail(shape, {worker: (end, pause(step, *worker)) for worker, end in ready.items()}, add)
    return rows


def _computations(cost: Cost, shape: Shape, step: int, dp: int, add: Callable[..., None]) -> list[float]:
    """Run the computations and messages of one pipeline; return when each stage has ended its last one."""
    orders = [schedule(stage, shape) for stage in range(shape.stages)]
    free, done = [GATHER] * shape.stages, [0] * shape.stages
    arrived: dict[tuple[str, int, int], float] = {}
    posted: dict[tuple[str, int], float] = {}
    last = shape.stages * shape.chunks - 1
    while any(done[stage] < len(orders[stage]) for stage in range(shape.stages)):
        for stage, order in enumerate(orders):
            while done[stage] < len(order):
                op, i, chunk = order[done[stage]]
                place = chunk * shape.stages + stage
                first = place == (0 if op == FORWARD else last)
                if not first and (op, i, place) not in arrived:
                    break
                start = free[stage] if first else max(free[stage], arrived[op, i, place])
                free[stage] = end = start + cost(step, dp, stage, i) * (1 if op == FORWARD else 2)
                add(op, dp, stage, start, end, i, chunk)
                done[stage] += 1
                other = place + (1 if op == FORWARD else -1)
                if 0 <= other <= last:
                    to = other % shape.stages
                    receive = posted.get((op, to), 0.0)
                    met = max(end, receive) + MESSAGE
                    add(op.replace("compute", "send"), dp, stage, end, met)
                    add(op.replace("compute", "recv"), dp, to, receive, met)
                    arrived[op, i, other] = met
                posted[op, stage] = end
    return free


def _tail(shape: Shape, ready: Mapping[tuple[int, int], tuple[float, float]], add: Callable[..., None]) -> None:
    """Add what follows the computations; of each worker is told when it ended them, and how long it pauses then."""
    at = {worker: sum(times) for worker, times in ready.items()}
    for dp in range(shape.dp):
        for stage in range(shape.stages):
            add("gc", dp, stage, ready[dp, stage][0], at[dp, stage])
            add("layernorm-grads-all-reduce", dp, stage, at[dp, stage], at[dp, stage] + LAYERNORM)
            at[dp, stage] += LAYERNORM
        ends: Sequence[int] = sorted({0, shape.stages - 1})
        met = max(at[dp, stage] for stage in ends) + EMBEDDING
        for stage in ends:
            add("embedding-grads-all-reduce", dp, stage, at[dp, stage], met)
            at[dp, stage] = met
    for stage in range(shape.stages):
        met = max(at[dp, stage] for dp in range(shape.dp)) + SCATTER
        for dp in range(shape.dp):
            add("grads-reduce-scatter", dp, stage, at[dp, stage], met)
            at[dp, stage] = met
    clipped = max(at.values()) + CLIP
    for (dp, stage), start in at.items():
        add("optimizer-clip-main-grad", dp, stage, start, clipped)
        add("optimizer", dp, stage, clipped, clipped + OPTIMIZER)


def jittered(cost: Cost, seed: int = 0, spread: float = 0.01) -> Cost:
    """Return a cost that varies a little by itself."""
    noise = np.random.default_rng(seed).normal(1.0, spread, size=1 << 16)
    return lambda step, dp, stage, i: (
        cost(step, dp, stage, i) * float(noise[(step * 7919 + dp * 997 + stage * 101 + i) % len(noise)])
    )


def slow_worker(rank: tuple[int, int], times: float) -> Cost:
    """One worker (data-parallel rank, stage) computes slower."""
    return lambda step, dp, stage, i: even(step, dp, stage, i) * (times if (dp, stage) == rank else 1.0)


def slow_stage(slow: int, times: float) -> Cost:
    """One stage computes longer."""
    return lambda step, dp, stage, i: even(step, dp, stage, i) * (times if stage == slow else 1.0)


def long_sequences(seed: int = 1, spread: float = 0.35) -> Cost:
    """Microbatches differ, on all stages alike."""
    lengths = np.random.default_rng(seed).lognormal(0.0, spread, size=1 << 12)
    return lambda step, dp, stage, i: (
        even(step, dp, stage, i) * float(lengths[(step * 631 + dp * 67 + i) % len(lengths)])
    )
