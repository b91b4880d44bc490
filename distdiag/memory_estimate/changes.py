"""What could be changed, each estimated anew: bytes saved, bytes sent more, work done more."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from distdiag.errors import DistdiagError
from distdiag.memory_estimate.estimate import Estimate, estimate
from distdiag.memory_estimate.layout import Layout, Schedule, Sharding
from distdiag.memory_estimate.model import Model
from distdiag.memory_estimate.traffic import sent_bytes
from distdiag.memory_estimate.training import OPTIMIZERS, AttentionKind, Loss, OptimizerStep, Recompute, Training

WORTH_TELLING = 0.01
"""Changes that save less of the peak are left out."""
ANOTHER_OPTIMIZER = "another optimizer"
"""A price that is not paid without being asked: other numbers come out."""
MOST_TOGETHER = 6
"""With more changes at once it is another job."""
RECOMPUTED = 1 / 3
"""Full recomputation runs one more forward, which is a third of forward and backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing done differently, all else equal: the same ranks and the same samples in a step."""

    name: str
    option: str
    """How to say it to ``distdiag memory``."""
    peak_bytes: int
    saved_bytes: int
    sent_bytes: int
    """What the busiest rank sends in a step then."""
    sent_more_bytes: int
    price: str
    """What it costs beside communication."""
    fits: bool | None
    """Whether it makes the job fit; None where the size of the device is not known."""
    becomes: tuple[Layout, Training]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Idea:
    name: str
    option: str
    layout: Mapping[str, object] = dataclasses.field(default_factory=dict)
    training: Mapping[str, object] = dataclasses.field(default_factory=dict)
    price: str = ""


def changes(base: Estimate, device_bytes: int | None, per_node: int) -> tuple[Change, ...]:
    """Return the changes that lower the peak, best first.

    Best is what makes the job fit and sends least; where nothing has to be made to fit, what saves most.
    Tensor parallelism stays within a node of ``per_node`` devices.
    """
    sent = sum(sent_bytes(base.model, base.layout, base.training).values())
    found = [
        change for idea in _ideas(base, per_node) if (change := _tried(idea, base, sent, device_bytes)) is not None
    ]
    worth = [change for change in found if change.saved_bytes >= WORTH_TELLING * base.worst.total_bytes]
    needed = device_bytes is not None and base.worst.total_bytes > device_bytes
    return tuple(sorted(worth, key=_by_price if needed else _by_savings))


def combined(base: Estimate, device_bytes: int, per_node: int) -> tuple[Change, ...]:
    """Return changes that make the job fit together where none does alone; nothing where they do not suffice.

    Each is what saves most after those before it, first of all of what sends nothing more.
    """
    applied: list[Change] = []
    now = base
    while now.worst.total_bytes > device_bytes and len(applied) < MOST_TOGETHER:
        found = [each for each in changes(now, device_bytes, per_node) if each.price != ANOTHER_OPTIMIZER]
        if not found:
            return ()
        chosen = min(found, key=lambda each: (not each.fits, each.sent_more_bytes > 0, -each.saved_bytes))
        applied.append(chosen)
        now = estimate(base.model, *chosen.becomes)
    return tuple(applied) if now.worst.total_bytes <= device_bytes else ()


def _by_price(change: Change) -> tuple[bool, int, int]:
    return (not change.fits, change.sent_more_bytes if change.fits else 0, -change.saved_bytes)


def _by_savings(change: Change) -> tuple[int, int]:
    return (-change.saved_bytes, change.sent_more_bytes)


def _tried(idea: _Idea, base: Estimate, sent: int, device_bytes: int | None) -> Change | None:
    """Estimate an idea; None where its sizes do not divide."""
    make: Callable[..., Layout] = dataclasses.replace
    alter: Callable[..., Training] = dataclasses.replace
    try:
        new = estimate(base.model, make(base.layout, **idea.layout), alter(base.training, **idea.training))
    except DistdiagError:
        return None
    peak = new.worst.total_bytes
    sent_then = sum(sent_bytes(base.model, new.layout, new.training).values())
    return Change(
        name=idea.name,
        option=idea.option,
        peak_bytes=peak,
        saved_bytes=base.worst.total_bytes - peak,
        sent_bytes=sent_then,
        sent_more_bytes=sent_then - sent,
        price=idea.price,
        fits=None if device_bytes is None else peak <= device_bytes,
        becomes=(new.layout, new.training),
    )


def _ideas(base: Estimate, per_node: int) -> Iterator[_Idea]:
    yield from _shardings(base.layout)
    yield from _parallel(base.layout, base.model, per_node)
    yield from _activations(base.layout, base.training)
    yield from _numbers(base.training)


def _shardings(layout: Layout) -> Iterator[_Idea]:
    stage = layout.sharding.stage
    if layout.data * layout.context == 1:
        return
    if stage < 1:
        yield _Idea(name="shard optimizer states (ZeRO-1)", option="--zero 1", layout={"sharding": Sharding.ZERO_1})
    if stage < 2:
        yield _Idea(name="shard gradients too (ZeRO-2)", option="--zero 2", layout={"sharding": Sharding.ZERO_2})
    if stage < 3:
        yield _Idea(name="shard parameters too (FSDP)", option="--fsdp", layout={"sharding": Sharding.FSDP})
    if layout.replicas > 1:
        yield _Idea(name="shard over all ranks, not within replicas", option="--replicas 1", layout={"replicas": 1})
    if not layout.reshard_after_forward:
        yield _Idea(
            name="reshard after the forward",
            option="--reshard-after-forward",
            layout={"reshard_after_forward": True},
        )


def _parallel(layout: Layout, model: Model, per_node: int) -> Iterator[_Idea]:
    """Double one dimension and halve data parallelism: as many ranks, and as many samples in a step."""
    if layout.tensor > 1 and not layout.sequence_parallel:
        yield _Idea(name="sequence parallelism", option="--sp", layout={"sequence_parallel": True})
    if layout.data % 2 == 0:
        half = {"data": layout.data // 2, "micro_batches": layout.micro_batches * 2}
        twice = f"--dp {half['data']} --micro-batches {half['micro_batches']}"
        for name, field, flag in (
            ("tensor", "tensor", "--tp"),
            ("pipeline", "pipeline", "--pp"),
            ("context", "context", "--cp"),
        ):
            if field != "pipeline" and (model.measured or not model.activations_known):
                continue  # what it does to activations, and sends, is not known
            size = 2 * int(getattr(layout, field))
            if field == "tensor" and size > per_node:
                continue  # it sends in every layer
            price = "a bubble of idle ranks" if field == "pipeline" else "smaller matrices"
            changed = {**half, field: size}
            if field == "context":
                price = "uneven causal work unless balanced"
            yield _Idea(
                name=f"{name} parallel {size // 2} to {size}",
                option=f"{flag} {size} {twice}",
                layout=changed,
                price=price,
            )
    if any(block.mlp and block.mlp.experts for block in model.blocks):
        size = 2 * layout.expert
        yield _Idea(name=f"expert parallel {size // 2} to {size}", option=f"--ep {size}", layout={"expert": size})
    if layout.pipeline > 1 and layout.schedule is not Schedule.ONE_F_ONE_B:
        yield _Idea(
            name="schedule 1F1B",
            option="--schedule 1f1b --chunks 1",
            layout={"schedule": Schedule.ONE_F_ONE_B, "chunks": 1},
            price="a longer bubble" if layout.schedule is Schedule.INTERLEAVED else "",
        )


def _activations(layout: Layout, training: Training) -> Iterator[_Idea]:
    if not training.sequence:
        return
    eager = training.attention is AttentionKind.EAGER
    if eager:
        yield _Idea(name="flash attention", option="--attention flash", training={"attention": AttentionKind.FLASH})
    if eager and training.recompute is Recompute.NONE:
        yield _Idea(
            name="recompute attention scores",
            option="--recompute selective",
            training={"recompute": Recompute.SELECTIVE},
            price="a few % more work",
        )
    if training.recompute is not Recompute.FULL:
        yield _Idea(
            name="recompute whole blocks",
            option="--recompute full",
            training={"recompute": Recompute.FULL},
            price=f"{RECOMPUTED:.0%} more work",
        )
    if training.micro_batch % 2 == 0:
        size, number = training.micro_batch // 2, layout.micro_batches * 2
        yield _Idea(
            name=f"micro-batch {training.micro_batch} to {size}",
            option=f"--micro-batch {size} --micro-batches {number}",
            layout={"micro_batches": number},
            training={"micro_batch": size},
            price="smaller matrices",
        )
    if training.loss is not Loss.CHUNKED:
        yield _Idea(name="loss in chunks", option="--loss chunked", training={"loss": Loss.CHUNKED})


def _numbers(training: Training) -> Iterator[_Idea]:
    optimizer = training.optimizer
    if optimizer.name.startswith("adam") and optimizer.name != "adam-8bit":
        yield _Idea(
            name="8-bit Adam",
            option="--optimizer adam-8bit",
            training={"optimizer": OPTIMIZERS["adam-8bit"]},
            price=ANOTHER_OPTIMIZER,
        )
    if optimizer.step is not OptimizerStep.FUSED and optimizer.name.startswith("adam"):
        yield _Idea(
            name="fused Adam", option="--optimizer adam-fused", training={"optimizer": OPTIMIZERS["adam-fused"]}
        )
    if not training.bucket_views:
        yield _Idea(name="gradients as views of buckets", option="--bucket-views", training={"bucket_views": True})
