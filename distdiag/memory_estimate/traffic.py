"""What one rank sends in a step, by the dimension that it is for: the price of a layout.

Ring algorithms: an all-gather or a reduce-scatter of ``x`` bytes over ``n`` ranks sends ``x·(n-1)/n``, an
all-reduce twice that (Thakur et al. 2005).
"""

from collections.abc import Mapping

from distdiag.memory_estimate import share
from distdiag.memory_estimate.layout import Layout
from distdiag.memory_estimate.model import Block, Model
from distdiag.memory_estimate.share import Stage, stages
from distdiag.memory_estimate.tape import widths
from distdiag.memory_estimate.training import Recompute, Training


def sent_bytes(model: Model, layout: Layout, training: Training) -> Mapping[str, int]:
    """Return the bytes that the busiest rank sends in one step, by dimension; what is 0 is left out."""
    most: Mapping[str, int] = {}
    for stage in stages(layout, model):
        sent = {
            "data": _data(stage, model, layout, training),
            "tensor": _tensor(stage, model, layout, training),
            "context": _context(stage, layout, training),
            "pipeline": _pipeline(stage, model, layout, training),
            "expert": _expert(stage, model, layout, training),
        }
        if sum(sent.values()) > sum(most.values()):
            most = sent
    return {name: size for name, size in most.items() if size}


def _ring(size: int, ranks: int) -> int:
    return size * (ranks - 1) // ranks


def _data(stage: Stage, model: Model, layout: Layout, training: Training) -> int:
    """Gradients once a step; with stage 3 gradients and two gathers of the parameters in every micro-batch."""
    weights = share.weights_of(stage, model)
    precision = training.precision
    dense = share.total([each for each in weights if not each.expert], layout)
    routed = share.total([each for each in weights if each.expert], layout)
    sent = 0
    for elements, ranks in ((dense, layout.shards), (routed, layout.expert_shards)):
        reduced = 2 * _ring(elements * precision.gradient, ranks)
        if layout.sharding.stage == 3:
            gathers = 2 if layout.reshard_after_forward else 1
            reduced = (gathers + 1) * _ring(elements * precision.gathered, ranks) * layout.micro_batches
        across = elements * precision.gradient // (ranks if layout.sharding.stage == 3 else 1)
        sent += reduced + (2 * _ring(across, layout.replicas) if layout.replicas > 1 else 0)
    return sent


def _forwards(training: Training) -> int:
    """Return how often the forward's communication runs: full recomputation repeats it."""
    return 2 if training.recompute is Recompute.FULL else 1


def _stream(model: Model, layout: Layout, training: Training) -> int:
    size = widths(training, layout, model.hidden)
    return size.tokens * size.bytes * model.hidden


def _tensor(stage: Stage, model: Model, layout: Layout, training: Training) -> int:
    """Two all-reduces in the forward of a layer and two in its backward; sequence parallelism sends as much."""
    if layout.tensor == 1:
        return 0
    one = 2 * _ring(_stream(model, layout, training), layout.tensor)
    return len(stage.blocks) * 2 * (_forwards(training) + 1) * one * layout.micro_batches


def _context(stage: Stage, layout: Layout, training: Training) -> int:
    """Keys and values go around the ring in the forward, they and their gradients in the backward."""
    if layout.context == 1:
        return 0
    size = widths(training, layout, 0)
    pairs = sum(2 * size.tokens * size.bytes * block.attention.kv_width for block in stage.blocks if block.attention)
    return pairs // layout.tensor * (layout.context - 1) * (_forwards(training) + 2) * layout.micro_batches


def _pipeline(stage: Stage, model: Model, layout: Layout, training: Training) -> int:
    if layout.pipeline == 1:
        return 0
    stream = _stream(model, layout, training) // (layout.tensor if layout.sequence_parallel else 1)
    return 2 * stream * stage.chunks * layout.micro_batches


def _expert(stage: Stage, model: Model, layout: Layout, training: Training) -> int:
    """Tokens go to their experts and back, in the forward and in the backward."""
    routed = sum(_copies(block) for block in stage.blocks)
    one = _ring(_stream(model, layout, training) * routed, layout.expert)
    return 2 * (_forwards(training) + 1) * one * layout.micro_batches


def _copies(block: Block) -> int:
    return block.mlp.per_token if block.mlp and block.mlp.experts else 0
