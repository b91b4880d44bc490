"""A step of one rank played through backwards, where the peak is: loss, head, blocks, embedding, optimizer.

The forward only adds up what the backward finds, so it is not played. The order in which tensors are made and let go
is autograd's: the gradient of a step's input and weights is made while that of its output lives.
"""

from dataclasses import dataclass, field

from distdiag.memory_estimate import share
from distdiag.memory_estimate.layout import Layout, Schedule
from distdiag.memory_estimate.ledger import Item, Ledger, Peak
from distdiag.memory_estimate.model import Block, Model, Weight
from distdiag.memory_estimate.share import Stage, border_bytes
from distdiag.memory_estimate.tape import MASK, Step, Tape, Widths, tape, widths
from distdiag.memory_estimate.training import FP32, Loss, Recompute, Training
from distdiag.memory_estimate.units import Units


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A backward: how many parts of the batch are held beside its own, and whether gradients are there already."""

    others: int
    accumulates: bool


def peak_of(stage: Stage, model: Model, layout: Layout, training: Training) -> Peak:
    """Return what lies in the memory of a rank of ``stage`` when it is fullest, tensors alone."""
    peaks = []
    passes = _passes(stage, layout)
    for played in passes:
        player = _Player(stage=stage, model=model, layout=layout, training=training, played=played)
        player.play(last=played is passes[-1])
        peaks.append(player.ledger.peak)
    return max(peaks, key=lambda peak: peak.total)


def _passes(stage: Stage, layout: Layout) -> tuple[Pass, ...]:
    """Return the backwards of a step that may hold the peak.

    The first one makes the gradients; the second finds them there. Where the schedule takes in a new micro-batch for
    each that leaves, as many are held at the second.
    """
    batches = layout.micro_batches * stage.chunks
    first = Pass(others=stage.in_flight - 1, accumulates=False)
    if batches == 1:
        return (first,)
    refilled = layout.pipeline == 1 or (batches > stage.in_flight and layout.schedule is not Schedule.GPIPE)
    return first, Pass(others=stage.in_flight - (1 if refilled else 2), accumulates=True)


@dataclass(slots=True, kw_only=True)
class _Player:
    stage: Stage
    model: Model
    layout: Layout
    training: Training
    played: Pass
    ledger: Ledger = field(default_factory=Ledger)

    def play(self, *, last: bool) -> None:
        """Play one backward, and the optimizer's step behind the last."""
        units = self._units()
        tapes = [tape(block, self.model, self.layout, self.training) for block in units.blocks]
        size = widths(self.training, self.layout, self.model.hidden)
        self._hold_states(units, size)
        self.ledger.moment = "end of the forward"
        for each in tapes:
            self._hold_block(each, 1 + self.played.others, full=self.training.recompute is Recompute.FULL)
        if self.stage.first and self.model.dropout:
            self.ledger.hold(Item.ACTIVATIONS, size.part * self.model.hidden * MASK * (1 + self.played.others))
        self.ledger.hold(Item.ACTIVATIONS, self.model.measured_outside_bytes)
        self._loss_and_head(units, size)
        for number in reversed(range(len(tapes))):
            self._block(number, tapes[number], units)
        self._embedding(units)
        self.ledger.moment = "end of the backward"
        units.end()
        if last:
            self._optimizer()

    def _units(self) -> Units:
        """Return the blocks of one part of the model: with an interleaved schedule the stage holds several."""
        blocks: tuple[Block, ...] = self.stage.blocks[-(len(self.stage.blocks) // self.stage.chunks) :]
        return Units(
            ledger=self.ledger,
            layout=self.layout,
            training=self.training,
            blocks=blocks,
            outside=share.outer_weights(self.stage, self.model),
            accumulates=self.played.accumulates,
        )

    def _hold_states(self, units: Units, size: Widths) -> None:
        weights = share.weights_of(self.stage, self.model)
        held = share.held(weights, self.layout, self.training)
        self.ledger.moment = "between steps"
        self.ledger.hold(Item.PARAMETERS, held.parameters)
        self.ledger.hold(Item.MASTER, held.master)
        self.ledger.hold(Item.MOMENTS, held.moments)
        if units.gradients_are_there:
            self.ledger.hold(Item.GRADIENTS, held.gradients)
        self.ledger.hold(Item.BUCKETS, share.bucket_bytes(weights, self.layout, self.training))
        parts = 1 + self.played.others
        borders = border_bytes(self.stage, self.layout, size.stream, held=parts, accumulates=self.played.accumulates)
        self.ledger.hold(Item.BORDERS, borders)
        self.ledger.hold(Item.CASTS, self._casts(units))
        units.begin()

    def _casts(self, units: Units) -> int:
        """Return autocast's copies of matrices, which live to their backward; recomputed ones only for one block."""
        if not self.training.precision.cast_weights:
            return 0
        blocks = [share.total([each for each in block.weights if each.matrix], self.layout) for block in units.blocks]
        outside = [weight for weight in share.head_weights(self.model) if self.stage.last]
        inside = max(blocks) if self.training.recompute is Recompute.FULL else sum(blocks) * self.stage.chunks
        return (share.total(outside, self.layout) + inside) * self.training.precision.compute

    def _hold_block(self, tape_: Tape, parts: int, *, full: bool) -> None:
        if full:
            self.ledger.hold(Item.ACTIVATIONS, tape_.stream * parts)
            return
        for step in tape_.steps:
            self.ledger.hold(Item.ACTIVATIONS, (step.saved + step.statistics) * parts)
            self.ledger.hold(Item.SCORES, step.scores * parts)

    def _loss_and_head(self, units: Units, size: Widths) -> None:
        if not self.stage.last or not self.model.vocabulary or not self.training.sequence:
            return
        logits = size.tokens * -(-self.model.vocabulary // self.layout.tensor)
        kept = size.inputs()
        norm = size.stream + self.model.norm_statistics * FP32 * size.part
        parts = 1 + self.played.others // self.stage.chunks
        self.ledger.hold(Item.ACTIVATIONS, (norm + kept) * parts)
        head = share.head_weights(self.model)
        used = (*head, *(each for each in self.model.final if each not in head))
        units.enter_outside(used)
        self.ledger.moment = "backward of the loss"
        gradient = self._loss(logits, parts)
        self.ledger.moment = "backward of the head"
        self.ledger.hold(Item.TEMPORARIES, size.gathered)
        units.make_gradients(("head", "embedding"), head)
        self.ledger.free(Item.LOGIT_GRADIENTS, gradient)
        self.ledger.free(Item.ACTIVATIONS, kept)
        self.ledger.hold(Item.TEMPORARIES, size.stream)
        units.make_gradients(("norm.",), self.model.final)
        self.ledger.free(Item.TEMPORARIES, size.gathered)
        self.ledger.free(Item.ACTIVATIONS, norm)
        units.leave_outside(used)

    def _loss(self, logits: int, parts: int) -> int:
        """Play the loss and return the bytes of the logits' gradient, which lives until the head's backward.

        ``torch.distributed.pipelining`` keeps the logits of all micro-batches to the end of the step.
        """
        compute = self.training.precision.compute
        if self.training.loss is Loss.CHUNKED:
            return 0
        if self.training.loss is Loss.FUSED:
            self.ledger.hold(Item.LOGITS, logits * FP32 * parts)
            self.ledger.move(Item.LOGITS, Item.LOGIT_GRADIENTS, logits * FP32)
            return logits * FP32
        kept = self.layout.micro_batches if self.layout.pipeline > 1 else 1
        beside = 2 if self.layout.tensor == 1 else 3  # torch's loss_parallel makes one more
        self.ledger.hold(Item.LOGITS, logits * (compute * kept + FP32 * parts))
        self.ledger.hold(Item.LOGIT_GRADIENTS, beside * logits * FP32)
        self.ledger.free(Item.LOGIT_GRADIENTS, (beside - 1) * logits * FP32)
        self.ledger.free(Item.LOGITS, logits * FP32)
        if compute == FP32:
            return logits * FP32
        self.ledger.hold(Item.LOGIT_GRADIENTS, logits * compute)
        self.ledger.free(Item.LOGIT_GRADIENTS, logits * FP32)
        return logits * compute

    def _block(self, number: int, tape_: Tape, units: Units) -> None:
        name = f"backward of block {number + 1} of {len(units.blocks)}"
        self.ledger.moment = name
        units.enter(number)
        if self.training.recompute is Recompute.FULL:
            self._hold_block(tape_, 1, full=False)
            self.ledger.free(Item.ACTIVATIONS, tape_.stream)  # the input that was kept is the first norm's
        for branch in reversed(tape_.branches):
            for step in reversed(branch):
                self.ledger.moment = f"{name}, {step.name}"
                # The gradient of a branch's output is that of the residual stream, which lives on.
                self._step(step, units.blocks[number].weights, units, keeps_output=step is branch[-1])
            self.ledger.free(Item.TEMPORARIES, branch[0].input)  # added to the gradient of the residual stream
        self.ledger.moment = name
        units.leave(number)

    def _step(self, step: Step, weights: tuple[Weight, ...], units: Units, *, keeps_output: bool) -> None:
        self.ledger.hold(Item.TEMPORARIES, step.input)
        self.ledger.hold(Item.ATTENTION_TEMPORARIES, step.scratch)
        units.make_gradients(step.weights, weights)
        self.ledger.free(Item.ATTENTION_TEMPORARIES, step.scratch)
        if not keeps_output:
            self.ledger.free(Item.TEMPORARIES, step.output)
        self.ledger.free(Item.ACTIVATIONS, step.saved + step.statistics)
        self.ledger.free(Item.SCORES, step.scores)

    def _embedding(self, units: Units) -> None:
        if not self.stage.first:
            return
        self.ledger.moment = "backward of the embedding"
        tied = self.model.tied and self.stage.last and self.training.sequence > 0
        for weight in self.model.embedding:
            again = tied and weight in share.head_weights(self.model)
            units.enter_outside((weight,))
            units.make_gradients(("",), (weight,), again=again)
            units.leave_outside((weight,), again=again)

    def _optimizer(self) -> None:
        self.ledger.moment = "optimizer step"
        for item in (Item.CASTS, Item.GATHERED, Item.PREFETCHED, Item.UNIT_GRADIENTS):
            self.ledger.clear(item)
        weights = share.weights_of(self.stage, self.model)
        self.ledger.hold(Item.STEP, share.step_temporaries(weights, self.layout, self.training))
