"""What the operations of a block keep for their backward, and what their backwards make.

A block is a list of steps in the order of its forward. Walking them backwards, each makes the gradient of its
input and of its weights while its output's gradient and what it saved still live; then it lets both go. The sizes
are those of Korthikanti et al. 2022, section 4 (``s·b·h·(34 + 5·a·s/h)`` in 16-bit with dropout), taken apart
into single tensors so that grouped queries, gated and routed MLPs and other number formats follow from them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from distdiag.memory_estimate.layout import Layout
from distdiag.memory_estimate.model import Attention, Block, Mlp, Model
from distdiag.memory_estimate.training import FP32, AttentionKind, Recompute, Training

MASK = 1
"""Bytes of an element of a dropout mask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One operation of a block, in bytes of one micro-batch on one rank."""

    name: str
    saved: int = 0
    """Kept for the backward; statistics of norms and of attention's softmax are in ``statistics``."""
    statistics: int = 0
    scores: int = 0
    """Saved matrices of attention scores."""
    output: int
    """Gradient of the output, which the step's backward lets go."""
    input: int
    """Gradient of the input, which it makes."""
    weights: tuple[str, ...] = ()
    """Prefixes of the names of the weights whose gradients it makes."""
    scratch: int = 0
    """Lives during the step's backward alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tape:
    """A block's two branches, each of which the residual stream goes around."""

    branches: tuple[tuple[Step, ...], ...]
    stream: int
    """The residual stream, which is also what full recomputation keeps of a block."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """Return the steps in the order of the forward."""
        return tuple(step for branch in self.branches for step in branch)

    @property
    def saved(self) -> int:
        """Return the bytes that a block keeps, all counted."""
        return sum(step.saved + step.statistics + step.scores for step in self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """How much of a micro-batch a rank works on, and in which format."""

    tokens: int
    """Tokens that the rank's matrices see: the sequence over the context-parallel ranks, times the samples."""
    part: int
    """Tokens of the residual stream: fewer with sequence parallelism."""
    kept: int
    """Tokens of the input of linear layers that are kept."""
    whole: int
    """Tokens of one sample on all ranks."""
    hidden: int
    bytes: int
    stream_bytes: int
    """Of a number in the residual stream and in norms, which autocast leaves in FP32."""

    @property
    def stream(self) -> int:
        """Return the bytes of the residual stream."""
        return self.part * self.stream_bytes * self.hidden

    @property
    def gathered(self) -> int:
        """Return the bytes of the stream where the whole sequence is gathered: the gradients of linear inputs."""
        return self.tokens * self.stream_bytes * self.hidden

    def inputs(self, projections: int = 1) -> int:
        """Return what linear layers of one input keep of it; autocast casts it for each of them anew."""
        return self.kept * self.bytes * self.hidden * (projections if self.stream_bytes != self.bytes else 1)


def widths(training: Training, layout: Layout, hidden: int) -> Widths:
    """Return how much a rank works on, in a model of that width."""
    tokens = training.sequence // layout.context * training.micro_batch
    part = -(-tokens // layout.tensor) if layout.sequence_parallel else tokens
    precision = training.precision
    return Widths(
        tokens=tokens,
        part=part,
        kept=tokens if training.keeps_gathered_sequence else part,
        whole=training.sequence,
        hidden=hidden,
        bytes=precision.compute,
        stream_bytes=precision.parameter if precision.cast_weights else precision.compute,
    )


def tape(block: Block, model: Model, layout: Layout, training: Training) -> Tape:
    """Return the steps of a block; one of which only the measured total is known has a single step."""
    size = widths(training, layout, model.hidden)
    if block.measured_bytes is not None:
        return _whole(block.measured_bytes, block.input_bytes, block.largest_bytes)
    if block.attention is None or block.mlp is None or not training.sequence:
        return _whole(0, size.stream, 0)
    return Tape(
        branches=(
            _attention(block.attention, model, layout, training, size),
            _mlp(block.mlp, model, layout, size),
        ),
        stream=size.stream,
    )


def _whole(saved: int, stream: int, largest: int) -> Tape:
    """Return a block of which only totals are known: the step that kept the largest tensor, and the rest."""
    rest = Step(name="block", saved=saved - largest, output=largest, input=stream, weights=("",))
    last = Step(name="largest tensor", saved=largest, output=stream, input=largest)
    return Tape(branches=((rest, last),), stream=stream)


def _norm(name: str, model: Model, size: Widths, output: int) -> Step:
    return Step(
        name=name,
        saved=size.stream,
        statistics=model.norm_statistics * FP32 * size.part,
        output=output,
        input=size.stream,
        weights=(f"{name}.",),
    )


def _dropout(name: str, model: Model, size: Widths) -> Sequence[Step]:
    if not model.dropout:
        return ()
    elements = size.part * model.hidden
    return (Step(name=name, saved=elements * MASK, output=size.stream, input=size.stream),)


def _attention(
    attention: Attention, model: Model, layout: Layout, training: Training, size: Widths
) -> tuple[Step, ...]:
    query = size.tokens * size.bytes * attention.query_width // layout.tensor
    # Fewer key heads than ranks: each rank holds a copy of the head that its queries need.
    pair = 2 * size.tokens * size.bytes * max(attention.kv_width // layout.tensor, attention.head_size)
    return (
        _norm("norm1", model, size, size.gathered),
        Step(
            name="query, key, value",
            saved=size.inputs(3),
            output=query + pair,
            input=size.gathered,
            weights=("query.", "key.", "value."),
        ),
        *_core(attention, model, layout, training, size, query, pair),
        Step(
            name="attention output",
            saved=query if training.attention is AttentionKind.EAGER else 0,  # flash attention keeps it itself
            output=size.stream,
            input=query,
            weights=("out.",),
        ),
        *_dropout("attention dropout", model, size),
    )


def _core(
    attention: Attention, model: Model, layout: Layout, training: Training, size: Widths, query: int, pair: int
) -> tuple[Step, ...]:
    """Scores, softmax and weighted values, or all of it as one fused operation."""
    ring = 2 * pair if layout.context > 1 else 0  # the neighbour's keys and values, and their gradients
    heads = attention.heads // layout.tensor
    if training.attention is AttentionKind.FLASH:
        statistics = FP32 * heads * size.tokens
        saved = query + pair + query
        return (
            Step(
                name="attention",
                saved=saved,
                statistics=statistics,
                output=query,
                input=query + pair,
                scratch=ring,
            ),
        )
    elements = heads * size.tokens * size.whole
    matrix = elements * size.bytes
    if training.recompute is Recompute.SELECTIVE:
        return (
            Step(
                name="attention",
                saved=query + pair,
                output=query,
                input=query + pair,
                scratch=ring + 3 * matrix + (elements * MASK if model.dropout else 0),
            ),
        )
    return _scores(query, pair, matrix, elements * MASK if model.dropout else 0, ring)


def _scores(query: int, pair: int, matrix: int, mask: int, ring: int) -> tuple[Step, ...]:
    """Return attention with its scores in memory; ``mask`` is 0 where nothing is dropped from them."""
    dropout = Step(name="attention scores' dropout", scores=mask, output=matrix, input=matrix)
    return (
        Step(name="attention scores", saved=query + pair // 2, output=matrix, input=query + pair // 2, scratch=ring),
        Step(name="attention softmax", scores=matrix, output=matrix, input=matrix),
        *((dropout,) if mask else ()),
        Step(
            name="attention values",
            saved=pair // 2,
            scores=matrix if mask else 0,
            output=query,
            input=matrix + pair // 2,
        ),
    )


def _mlp(mlp: Mlp, model: Model, layout: Layout, size: Widths) -> tuple[Step, ...]:
    norm = _norm("norm2", model, size, size.gathered)
    dropout = _dropout("MLP dropout", model, size)
    if not mlp.experts:
        return (norm, *_feed_forward("MLP", "", mlp.width, mlp.gated, layout, size, size.tokens), *dropout)
    routed = size.tokens * mlp.per_token
    copies = routed * size.bytes * model.hidden
    router = Step(
        name="router",
        saved=size.inputs() + FP32 * size.tokens * mlp.experts,
        output=copies,
        input=size.gathered,
        weights=("router.",),
    )
    combine = Step(name="experts' outputs", saved=copies, output=size.gathered, input=copies)
    shared = (
        _feed_forward("shared MLP", "shared.", mlp.shared_width, mlp.gated, layout, size, size.tokens)
        if mlp.shared_width
        else ()
    )
    experts = _feed_forward("experts", "", mlp.width, mlp.gated, layout, size, routed)
    return (norm, *shared, router, *experts, combine, *dropout)


def _feed_forward(
    name: str, prefix: str, width: int, gated: bool, layout: Layout, size: Widths, tokens: int
) -> tuple[Step, ...]:
    """Up, activation, down; a gated one keeps both projections, the activated gate and the product."""
    inner = tokens * size.bytes * width // layout.tensor
    times = tokens // size.tokens  # a token goes to several experts
    projections = 2 if gated else 1
    return (
        Step(
            name=f"{name} up",
            saved=size.inputs(projections) * times,
            output=projections * inner,
            input=size.gathered * times,
            weights=(f"{prefix}up.", f"{prefix}gate."),
        ),
        *(
            (
                Step(name=f"{name} activation", saved=inner, output=inner, input=inner),
                Step(name=f"{name} gate", saved=2 * inner, output=inner, input=2 * inner),
            )
            if gated
            else (Step(name=f"{name} activation", saved=inner, output=inner, input=inner),)
        ),
        Step(name=f"{name} down", saved=inner, output=size.stream * times, input=inner, weights=(f"{prefix}down.",)),
    )
