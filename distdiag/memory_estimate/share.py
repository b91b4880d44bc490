"""What lies on one rank: its stage of a pipeline, and its part of weights, gradients and the optimizer's states."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from distdiag.memory_estimate.layout import Layout, Schedule, Sharding
from distdiag.memory_estimate.model import Block, Model, Split, Weight
from distdiag.memory_estimate.training import OptimizerStep, Training

ZERO_BUCKET = 500_000_000
"""Elements of DeepSpeed's ``reduce_bucket_size``, its default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What one pipeline rank holds."""

    number: int
    blocks: tuple[Block, ...]
    first: bool
    last: bool
    in_flight: int
    """Micro-batches, or with an interleaved schedule parts of them, whose activations it holds at most."""
    chunks: int = 1


def stages(layout: Layout, model: Model) -> tuple[Stage, ...]:
    """Return what each pipeline rank holds; where layers do not divide, the first ranks hold one more."""
    ranks = range(layout.pipeline)
    return tuple(
        Stage(
            number=rank,
            blocks=tuple(model.blocks[number] for number in _layers_of(rank, layout, len(model.blocks))),
            first=rank == 0,
            last=rank == layout.pipeline - 1,
            in_flight=_in_flight(rank, layout),
            chunks=layout.chunks,
        )
        for rank in ranks
    )


def _layers_of(rank: int, layout: Layout, layers: int) -> Sequence[int]:
    parts = layout.pipeline * layout.chunks
    size, more = divmod(layers, parts)
    starts = [part * size + min(part, more) for part in range(parts + 1)]
    return [layer for part in range(rank, parts, layout.pipeline) for layer in range(starts[part], starts[part + 1])]


def _in_flight(rank: int, layout: Layout) -> int:
    """Return how many parts a rank holds at most.

    1F1B: the first of p ranks warms up with p - 1 and then alternates. Interleaved with v chunks (Narayanan et
    al. 2021): 2 · (p - rank - 1) + (v - 1) · p of them before the first backward, each of a v-th of the layers.
    """
    p, v, m = layout.pipeline, layout.chunks, layout.micro_batches
    if p == 1:
        return 1
    if layout.schedule is Schedule.GPIPE:
        return m
    if layout.schedule is Schedule.ONE_F_ONE_B:
        return min(m, p - rank)
    return min(m * v, 2 * (p - rank - 1) + (v - 1) * p + 1)


def border_bytes(stage: Stage, layout: Layout, stream: int, *, held: int, accumulates: bool) -> int:
    """Return what lies at the borders of a stage beside what its blocks keep of ``held`` parts of the batch.

    ``stream`` is one micro-batch there. As ``torch.distributed.pipelining`` has it: a buffer for the input and for
    the output's gradient of every micro-batch of the step, of which the inputs that are held are what the first norm
    keeps; the outputs of what is held and of one that is being sent; one gradient that is being sent.
    """
    if layout.pipeline == 1:
        return 0
    batches, chunks = layout.micro_batches, stage.chunks
    behind = chunks - stage.first
    """Parts that have one before them."""
    ahead = chunks - stage.last
    sent = layout.schedule is not Schedule.GPIPE
    inputs = behind * batches - held * behind // chunks
    outputs = ahead * min(batches, -(-held // chunks) + sent)
    return stream * (max(inputs, 0) + ahead * batches + outputs + (behind > 0 and accumulates))


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
