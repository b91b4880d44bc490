"""Which part of the weights, their gradients and the optimizer's states lies on one rank."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from distdiag.memory_estimate.layout import Layout, Sharding
from distdiag.memory_estimate.model import Model, Split, Weight
from distdiag.memory_estimate.pipeline import Stage
from distdiag.memory_estimate.training import OptimizerStep, Training

ZERO_BUCKET = 500_000_000
"""Elements of DeepSpeed's ``reduce_bucket_size``, its default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What one rank of a stage holds from step to step, in bytes."""

    parameters: int
    gradients: int
    """Once all are there."""
    master: int
    moments: int

    @property
    def total(self) -> int:
        """Return the model states of the ZeRO paper."""
        return self.parameters + self.gradients + self.master + self.moments


def weights_of(stage: Stage, model: Model) -> tuple[Weight, ...]:
    """Return the weights of a stage; the last holds a copy of a tied embedding where that is on another rank."""
    inside = [weight for block in stage.blocks for weight in block.weights]
    return (*outer_weights(stage, model), *inside)


def outer_weights(stage: Stage, model: Model) -> tuple[Weight, ...]:
    """Return the weights of a stage that stand in no block: what FSDP calls the root's."""
    embedding = model.embedding if stage.first else ()
    copies = model.embedding[:1] if stage.last and model.tied and not stage.first else ()
    return (*embedding, *copies, *(model.final if stage.last else ()))


def head_weights(model: Model) -> tuple[Weight, ...]:
    """Return the matrix that gives the logits: its own, or the embedding's."""
    return model.embedding[:1] if model.tied else tuple(each for each in model.final if each.name == "head")


def local(weight: Weight, layout: Layout) -> int:
    """Return the elements of a weight that tensor and expert parallelism leave on a rank."""
    share = layout.tensor
    rows = -(-weight.rows // share) if weight.split is Split.ROWS else weight.rows
    columns = -(-weight.columns // share) if weight.split is Split.COLUMNS else weight.columns
    return rows * columns * _count(weight, layout)


def _count(weight: Weight, layout: Layout) -> int:
    return -(-weight.count // layout.expert) if weight.expert else weight.count


def total(weights: Sequence[Weight], layout: Layout) -> int:
    """Return the elements of some weights on a rank that holds them whole."""
    return sum(local(weight, layout) for weight in weights)


def shard(weight: Weight, layout: Layout) -> int:
    """Return the elements of a weight on the data-parallel rank that holds most of it.

    FSDP2 cuts a tensor's first dimension, so that small ones lie on the first ranks alone (each expert's matrices
    are tensors of their own); ZeRO cuts what it has laid end to end.
    """
    size = local(weight, layout)
    parts = layout.expert_shards if weight.expert else layout.shards
    if layout.sharding is not Sharding.FSDP:
        return -(-size // parts)
    rows = _rows(weight, layout)
    return -(-rows // parts) * (size // rows)


def gathered(weight: Weight, layout: Layout) -> int:
    """Return the elements of a weight while it is gathered, with the padding of its shards."""
    return shard(weight, layout) * (layout.expert_shards if weight.expert else layout.shards)


def _rows(weight: Weight, layout: Layout) -> int:
    return -(-weight.rows // layout.tensor) if weight.split is Split.ROWS else weight.rows


def held(weights: Sequence[Weight], layout: Layout, training: Training) -> Held:
    """Return what the rank that holds most of the weights keeps of them.

    With mixed precision FSDP2 keeps its shards as the FP32 master and gathers them in 16-bit; ZeRO keeps both.
    """
    precision, stage = training.precision, layout.sharding.stage
    sharded = [shard(weight, layout) for weight in weights]
    whole, part = total(weights, layout), sum(sharded)
    updated = sharded if stage else [local(weight, layout) for weight in weights]
    if layout.sharding is Sharding.ZERO_1_TENSORS:
        updated = dealt_out(weights, layout, training)
    moments = _moments(weights, updated, training)
    if layout.sharding is Sharding.FSDP and precision.master:
        return Held(parameters=part * precision.master, gradients=part * precision.master, master=0, moments=moments)
    return Held(
        parameters=(part if stage == 3 else whole) * precision.parameter,
        gradients=(part if stage >= 2 else whole) * precision.gradient,
        master=sum(updated) * precision.master,
        moments=moments,
    )


def _moments(weights: Sequence[Weight], sizes: Sequence[int], training: Training) -> int:
    """Return the bytes of the optimizer's state for so many elements of each weight."""
    state, number = training.optimizer.state, training.precision.moment
    return sum(state(weight, size, number) for weight, size in zip(weights, sizes, strict=True))


def dealt_out(weights: Sequence[Weight], layout: Layout, training: Training) -> list[int]:
    """Return the elements of each weight that the fullest rank updates when whole tensors are dealt out.

    The largest first, each to the rank that has least so far, as torch's ``ZeroRedundancyOptimizer`` does. The fullest
    rank is the one with most bytes: an optimizer may keep more for some tensors than for others of their size.
    """
    sizes = [local(weight, layout) for weight in weights]
    ranks: list[tuple[int, int]] = [(0, rank) for rank in range(layout.shards)]
    dealt = [[0] * len(sizes) for _ in ranks]
    for number in sorted(range(len(sizes)), key=lambda each: -sizes[each]):
        elements, rank = heapq.heappop(ranks)
        heapq.heappush(ranks, (elements + sizes[number], rank))
        dealt[rank][number] = sizes[number]
    master = training.precision.master
    return max(dealt, key=lambda mine: (_moments(weights, mine, training) + sum(mine) * master, sum(mine)))


def step_temporaries(weights: Sequence[Weight], layout: Layout, training: Training) -> int:
    """Return what the optimizer's update makes beside its states, in bytes."""
    optimizer, stage = training.optimizer, layout.sharding.stage
    sizes = [shard(weight, layout) if stage else local(weight, layout) for weight in weights]
    if layout.sharding is Sharding.ZERO_1_TENSORS:
        sizes = dealt_out(weights, layout, training)
    number = training.precision.moment
    if optimizer.step is OptimizerStep.FOREACH:
        return sum(sizes) * number * optimizer.temporaries
    if optimizer.step is OptimizerStep.LOOP:
        return max(sizes, default=0) * number * optimizer.temporaries
    return 0


def bucket_bytes(weights: Sequence[Weight], layout: Layout, training: Training) -> int:
    """Return the buffers through which gradients are reduced, where they exist all the time.

    DDP's hold all gradients once more, unless these are views of them; DeepSpeed's and Megatron's hold a part. FSDP2
    makes its own as it goes.
    """
    if layout.shards == 1 or layout.sharding is Sharding.FSDP:
        return 0
    elements = total(weights, layout)
    if layout.sharding in (Sharding.DDP, Sharding.ZERO_1_TENSORS):
        return 0 if training.bucket_views else elements * training.precision.gradient
    return min(elements, ZERO_BUCKET) * training.precision.gradient
