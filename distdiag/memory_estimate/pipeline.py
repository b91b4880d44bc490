"""What a pipeline rank holds: its layers, the micro-batches in flight, and what waits at the borders to others."""

from collections.abc import Sequence
from dataclasses import dataclass

from distdiag.memory_estimate.layout import Layout, Schedule
from distdiag.memory_estimate.model import Block, Model


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
