"""Pipelines made by hand: logs of ranks that run a schedule, with compute and transfer times of choice.

    logs = pipeline(Plan(stages=4, microbatches=8, schedule="1F1B"))
    run = logs.load(tmp_path)

A rank runs its forwards and backwards in the order of the schedule, each when what it needs has come.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.logs import MONOTONIC_NS, SECOND_NS, Logs, RankLog

FORWARD, BACKWARD = "F", "B"
Action = tuple[str, int, int]
"""Forward or backward, of which stage of the rank, of which micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    stages: int = 4
    microbatches: int = 8
    schedule: str = "1F1B"
    """``GPipe``, ``1F1B``, ``interleaved`` or ``looped``."""
    chunks: int = 1
    copies: int = 1
    steps: int = 14
    forward: float = 0.005
    """Seconds that all stages of one rank take for a micro-batch."""
    backward: float = 0.010
    heavy: float = 1.0
    """How much longer the last rank takes."""
    transfer: float = 0.0
    tensors: int = 1
    shapes: bool = False
    """Send the shape before each tensor."""
    size_bytes: int = 1 << 20
    rings: tuple[str, str] | None = None
    """Copies of a stage hand messages round before each forward, in groups of their own: how pipelines' groups are
    called, and how these."""
    device: str = "cpu"
    backwards: Callable[[int], int] = field(default=lambda made: made)
    """What is counted as backwards, of those that were made."""
    number_of: Callable[[int, int], int] = field(default=lambda step, microbatches: microbatches)
    """Micro-batches of a step."""


def order(plan: Plan, rank: int, microbatches: int) -> list[Action]:
    """Return what a rank runs in a step: warm-up forwards, then one of each by turns, then what is left."""
    p, v, total = plan.stages, plan.chunks, plan.chunks * microbatches
    warm_up = {
        "GPipe": total,
        "looped": total,
        "1F1B": min(p - 1 - rank, total),
        "interleaved": min(2 * (p - 1 - rank) + (v - 1) * p, total),
    }[plan.schedule]
    together = microbatches if plan.schedule == "looped" else p if plan.schedule == "interleaved" else total

    def action(number: int, kind: str) -> Action:
        block, within = divmod(number, together * v) if v > 1 else (0, number)
        chunk, microbatch = divmod(within, together) if v > 1 else (0, within)
        return kind, chunk if kind == FORWARD else v - 1 - chunk, block * together + microbatch

    forwards = [action(number, FORWARD) for number in range(total)]
    backwards = [action(number, BACKWARD) for number in range(total)]
    steady = [each for pair in zip(forwards[warm_up:], backwards, strict=False) for each in pair]
    return forwards[:warm_up] + steady + backwards[total - warm_up :]


def pipeline(plan: Plan) -> Logs:
    """Return the logs of a job that trains in a pipeline."""
    logs = Logs(world_size=plan.stages * plan.copies)
    if plan.rings is not None:
        _groups(plan, logs, *plan.rings)
    for copy in range(plan.copies):
        begin = 0.0
        for step in range(plan.steps):
            begin = _step(plan, [logs[stage * plan.copies + copy] for stage in range(plan.stages)], step, begin)
    for rank in logs:
        rank.exit()
    return logs


def _groups(plan: Plan, logs: Logs, pipeline_name: str, ring_name: str) -> None:
    for rank in logs:
        stage, copy = divmod(rank.rank, plan.copies)
        rank.group(f"p{copy}", range(copy, logs.world_size, plan.copies), description=pipeline_name)
        rank.group(f"r{stage}", range(stage * plan.copies, (stage + 1) * plan.copies), description=ring_name)


def _handed_round(plan: Plan, rank: RankLog) -> None:
    stage, copy = divmod(rank.rank, plan.copies)
    first = stage * plan.copies
    rank.send(first + (copy + 1) % plan.copies, group=f"r{stage}", seconds=0.0)
    rank.recv(first + (copy - 1) % plan.copies, group=f"r{stage}", seconds=0.0001)


def _step(plan: Plan, ranks: Sequence[RankLog], step: int, begin: float) -> float:
    """Let all ranks run one step from a moment on; return when the last one has ended it."""
    microbatches = plan.number_of(step, plan.microbatches)
    sent: dict[tuple[str, int, int], float] = {}
    for rank in ranks:
        rank.at(begin)
    waiting = [(stage, _program(plan, ranks, stage, microbatches, sent)) for stage in range(plan.stages)]
    while waiting:
        waiting = [(stage, program) for stage, program in waiting if not next(program, False)]
    end = max(_now(rank) for rank in ranks)
    for rank in ranks:
        rank.backwards = plan.backwards(rank.backwards)
        rank.all_reduce(seconds=max(0.0, end + 0.0005 - _now(rank)), device=plan.device)
        rank.end_step(seconds=0.0, forward_ns=0, backward_ns=0)
    return end + 0.0005


def _now(rank: RankLog) -> float:
    return (rank.now_ns - MONOTONIC_NS) / SECOND_NS


def _program(
    plan: Plan, ranks: Sequence[RankLog], stage: int, microbatches: int, sent: dict[tuple[str, int, int], float]
) -> Iterator[bool]:
    """Run a stage's step; yield False while something has not come, and True at the end."""
    rank, last = ranks[stage], plan.chunks * plan.stages - 1
    longer = plan.heavy if stage == plan.stages - 1 else 1.0
    for kind, chunk, microbatch in order(plan, stage, microbatches):
        virtual = chunk * plan.stages + stage
        source, target = (virtual - 1, virtual + 1) if kind == FORWARD else (virtual + 1, virtual - 1)
        if 0 <= source <= last:
            while (kind, source, microbatch) not in sent:
                yield False
            came = sent[kind, source, microbatch] + plan.transfer
            _received(plan, rank, ranks[source % plan.stages].rank, came)
        if kind == BACKWARD:
            rank.backwards += 1
        elif plan.rings is not None:
            _handed_round(plan, rank)
        rank.sleep((plan.forward if kind == FORWARD else plan.backward) * longer / plan.chunks)
        if 0 <= target <= last:
            sent[kind, virtual, microbatch] = _now(rank)
            _sent(plan, rank, ranks[target % plan.stages].rank)
    yield True


def _messages(plan: Plan) -> Iterator[dict[str, Any]]:
    for _ in range(plan.tensors):
        if plan.shapes:
            yield {"dtype": "int64", "shape": (3,)}
        yield {"dtype": "bfloat16", "shape": (plan.size_bytes // 4,)}


def _received(plan: Plan, rank: RankLog, peer: int, came: float) -> None:
    for number, message in enumerate(_messages(plan)):
        waited = max(0.0, came - _now(rank)) if not number else 0.0
        rank.recv(peer, seconds=waited, device=plan.device, **_group(plan, rank), **message)


def _sent(plan: Plan, rank: RankLog, peer: int) -> None:
    for message in _messages(plan):
        rank.send(peer, seconds=0.0, device=plan.device, **_group(plan, rank), **message)


def _group(plan: Plan, rank: RankLog) -> dict[str, Any]:
    return {} if plan.rings is None else {"group": f"p{rank.rank % plan.copies}"}
