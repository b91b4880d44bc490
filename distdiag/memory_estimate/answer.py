"""An estimate with all that is said about it: does it fit, what would lower it, what follows for the layout."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdiag.memory_estimate.changes import Change, changes
from distdiag.memory_estimate.estimate import Estimate
from distdiag.memory_estimate.layout import Sharding
from distdiag.memory_estimate.questions import answers
from distdiag.memory_estimate.traffic import sent_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What ``distdiag memory`` tells."""

    estimate: Estimate
    device_bytes: int | None
    changes: tuple[Change, ...]
    questions: Mapping[str, str]
    sent_bytes: Mapping[str, int]
    notes: tuple[str, ...]
    """What was assumed or left out."""

    @property
    def fits(self) -> bool | None:
        """Whether the fullest rank fits; None where the device is not known."""
        return None if self.device_bytes is None else self.estimate.worst.total_bytes <= self.device_bytes


def answer(base: Estimate, *, device_bytes: int | None, per_node: int) -> Answer:
    """Return an estimate with its changes and the questions in their order; ``per_node`` devices share fast links."""
    found = changes(base, device_bytes, per_node)
    return Answer(
        estimate=base,
        device_bytes=device_bytes,
        changes=found,
        questions=answers(base, device_bytes, per_node, found),
        sent_bytes=sent_bytes(base.model, base.layout, base.training),
        notes=tuple(_notes(base)),
    )


def _notes(base: Estimate) -> Iterator[str]:
    model, layout, training = base.model, base.layout, base.training
    if not model.activations_known:
        yield "activations are left out: only the size of the model is known (say --hidden, or --config)"
    elif not training.sequence and not model.measured:
        yield "activations are left out: say --sequence"
    if model.measured:
        yield "activations are those of the example inputs; a gradient as large as the largest of them lives beside"
        if layout.tensor > 1 or layout.context > 1:
            yield "activations of a Python module are not cut by --tp and --cp"
    yield f"{training.precision.name}: {training.precision.why}"
    if layout.sharding in (Sharding.ZERO_2, Sharding.ZERO_3):
        yield (
            "as the ZeRO paper counts (figure 1); DeepSpeed's own estimators take 18 bytes over the ranks, for "
            "gradients in FP32, and for stage 3 one gathered layer"
        )
    if any(block.mlp and block.mlp.experts for block in model.blocks):
        yield "tokens are taken to spread evenly over the experts"
    if layout.data > 1 and layout.sharding is Sharding.FSDP:
        yield "each layer is a unit of fully_shard, the rest another; the next layer is gathered while one computes"
