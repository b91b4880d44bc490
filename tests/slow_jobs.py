"""Jobs that are slow, made by hand: what a rank does itself in its steps, what it says, and what is told of it."""

import dataclasses
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from distdiag import events
from distdiag.analyzers import diagnose
from distdiag.findings import Finding, Report
from distdiag.run import Run
from tests.logs import MONOTONIC_NS, Logs

STEPS = 40
TRANSFER = 0.002
PARTS = ("other", "data", "forward", "backward", "optimizer")
Parts = Mapping[str, float]


def steady(rank: int, step: int) -> Parts:
    """What a rank does itself in a step, in seconds."""
    return {"data": 0.002, "forward": 0.02, "backward": 0.03, "optimizer": 0.004, "other": 0.001}


def one(rank: int, part: str, seconds: float, *, often: float = 1.0) -> Callable[[int, int], Parts]:
    """Let one part of one rank's steps take longer, mostly."""

    def parts(each: int, step: int) -> Parts:
        usual = steady(each, step)
        late = each == rank and random.Random(step).random() < often
        return {**usual, part: usual[part] + seconds * late}

    return parts


def noisy(rank: int, step: int) -> Parts:
    """Ranks that share cores: now this one takes a few milliseconds longer, now that one."""
    chance = random.Random(rank * 1000 + step)
    return {part: seconds + chance.expovariate(1 / 0.004) for part, seconds in steady(rank, step).items()}


def trained(
    parts: Callable[[int, int], Parts] = steady,
    *,
    ranks: int = 4,
    clock: str = "wait",
    facts: Callable[[int, int], dict[str, Any]] = lambda rank, step: {},
    after: Callable[[Any, int], None] = lambda rank, step: None,
    steps: int = STEPS,
    size_bytes: int = 1 << 16,
    transfer: float = TRANSFER,
    ranks_per_host: int = 2,
) -> Logs:
    """A data-parallel job: every rank computes, and reduces its gradients at the end of the backward."""
    logs = Logs(world_size=ranks, ranks_per_host=ranks_per_host)
    begin = dict.fromkeys(range(ranks), 0.0)
    for step in range(steps):
        own = {rank.rank: parts(rank.rank, step) for rank in logs}
        arrive = {each: begin[each] + sum(own[each][part] for part in PARTS[:4]) for each in own}
        end = max(arrive.values()) + transfer
        for rank in logs:
            each = rank.rank
            rank.at(arrive[each]).in_phase("backward")
            rank.backwards = 1
            call = rank.all_reduce("train.py:33 step", shape=(size_bytes // 4,), pending=True)
            rank.at(end).done(call, clock=clock).in_phase("")
            rank.sleep(own[each]["optimizer"])
            durations = {f"{part}_ns": round(own[each][part] * 1e9) for part in ("data", "forward", "optimizer")}
            backward = own[each]["backward"] + end - arrive[each]
            rank.end_step(seconds=0.0, facts=facts(each, step), backward_ns=round(backward * 1e9), **durations)
            after(rank, step)
            begin[each] = (rank.now_ns - MONOTONIC_NS) / 1e9
    for rank in logs:
        _put_starts_right(rank.records)
        rank.exit()
    return logs


def _put_starts_right(records: list[events.Event]) -> None:
    """The first step began with the job."""
    first = next(record for record in records if isinstance(record, events.Step))
    first.start_ns = MONOTONIC_NS


def told(logs: Logs, directory: Path) -> Report:
    return diagnose(logs.load(directory))


def the_finding(logs: Logs, directory: Path) -> Finding:
    (finding,) = told(logs, directory).findings
    return finding


def shares_of(report: Report) -> list[tuple[float, ...]]:
    return [
        tuple(row[f"{name}_share"] for name in ("compute", "communication", "data", "wait"))
        for row in report.performance["ranks"]
    ]


def whole(run: Run) -> Report:
    """Diagnose a run as if its logs had been too long for its frames."""
    return diagnose(dataclasses.replace(run, quality=dataclasses.replace(run.quality, window_bytes=1)))


def wrapped(units: int, size_bytes: int) -> Logs:
    """Two ranks that gather the parameters of many units one after another."""
    logs = Logs(world_size=2)
    for rank in logs:
        for step in range(12):
            rank.at(0.2 * step)
            for unit in range(units):
                rank.sleep(0.001)
                rank.call(
                    "all_gather_into_tensor",
                    "train.py:9 forward",
                    shape=(size_bytes // 4,),
                    module=f"layers.{unit}",
                    seconds=0.002,
                )
            rank.at(0.2 * step).end_step(seconds=0.2)
        rank.exit()
    return logs
