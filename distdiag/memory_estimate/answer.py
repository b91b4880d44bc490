"""An estimate with all that is said about it: does it fit, what would lower it, what follows for the layout."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from distdiag.errors import DistdiagError
from distdiag.memory_estimate import share
from distdiag.memory_estimate.changes import Change, changes, combined
from distdiag.memory_estimate.estimate import Estimate, estimate
from distdiag.memory_estimate.layout import Layout, Sharding
from distdiag.memory_estimate.tape import tape
from distdiag.memory_estimate.traffic import sent_bytes
from distdiag.memory_estimate.training import Recompute, Training

GIB = 1 << 30


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


def gib(size: float) -> str:
    """Write bytes in GiB, or MiB and KiB where they are few."""
    if size >= GIB:
        return f"{size / GIB:.3g} GiB" if size < 1000 * GIB else f"{size / GIB:,.0f} GiB"
    return f"{size / (1 << 20):.3g} MiB" if size >= 1 << 20 else f"{size / 1024:.3g} KiB"


def answers(base: Estimate, device_bytes: int | None, per_node: int, found: Sequence[Change]) -> Mapping[str, str]:
    """Return the answer to each question; ``per_node`` devices share the fast links, ``found`` would lower the peak."""
    return {
        "Does the model fit?": _model(base, device_bytes),
        "Does a layer fit?": _layer(base, device_bytes),
        "What topology?": _topology(base, per_node),
        "Memory or throughput?": _throughput(base, device_bytes, found, per_node),
    }


def _model(base: Estimate, device_bytes: int | None) -> str:
    model = base.model
    inside = (weight for block in model.blocks for weight in block.weights)
    whole = share.held([*model.embedding, *model.final, *inside], Layout(), base.training).total
    each = f"{gib(whole / base.layout.world)} on each of {base.layout.world} ranks if all of them are sharded"
    here = f"{gib(base.worst.states_bytes)} with this layout"
    answer = f"model states are {gib(whole)} on one device, {each}, {here}"
    if device_bytes is None:
        return answer
    if whole <= device_bytes:
        return f"yes, on one device: {answer}"
    if whole / base.layout.world <= device_bytes:
        return f"yes, sharded: {answer}; a device has {gib(device_bytes)}"
    return f"no, not on {base.layout.world} ranks: {answer}; a device has {gib(device_bytes)}"


def _layer(base: Estimate, device_bytes: int | None) -> str:
    model, layout, training = base.model, base.layout, base.training
    if not model.layers_known:
        return "how large a layer is, is not known: say --layers"
    sizes = []
    for block in {id(each): each for each in model.blocks}.values():
        weights = share.total(block.weights, layout) * training.precision.gathered
        sizes.append((2 * weights + tape(block, model, layout, training).saved, weights))
    size, weights = max(sizes)
    parts = f"{gib(weights)} of weights, as much of gradients"
    if size > 2 * weights:
        parts += f", {gib(size - 2 * weights)} of activations"
    answer = f"the largest layer takes {gib(size)} while it computes: {parts}"
    if device_bytes is None:
        return answer
    if size <= device_bytes:
        return f"yes: {answer}"
    return f"no: {answer}; cut it with --tp, or the sequence with --cp, for sharding the data does not help"


def _topology(base: Estimate, per_node: int) -> str:
    layout = base.layout
    sent = sent_bytes(base.model, layout, base.training)
    if not sent:
        return "nothing is sent: say --dp, --tp or --pp for more than one rank"
    size = 1
    within: list[str] = []
    across: list[str] = []
    for name, ranks in (
        ("tensor", layout.tensor),
        ("context", layout.context),
        ("data", layout.data),
        ("pipeline", layout.pipeline),
    ):
        size *= ranks
        if name in sent:
            (within if size <= per_node else across).append(f"{name} {gib(sent[name])}")
    if "expert" in sent:  # experts lie across data and context
        beyond = layout.tensor * layout.expert > per_node
        (across if beyond else within).append(f"expert {gib(sent['expert'])}")
    told = [f"within a node of {per_node}: {', '.join(within)}"] if within else []
    told += [f"between nodes: {', '.join(across)}"] if across else []
    if layout.tensor > per_node:
        told.append(f"tensor parallel {layout.tensor} leaves the node: it sends in every layer, keep it inside")
    unknown = (
        "; what activations send is not known" if not base.training.sequence and layout.world > layout.data else ""
    )
    return "a rank sends in a step " + "; ".join(told) + unknown


def _throughput(base: Estimate, device_bytes: int | None, found: Sequence[Change], per_node: int) -> str:
    if device_bytes is None:
        return "say --device-gib for what would fit"
    room = device_bytes - base.worst.total_bytes
    if room < 0:
        return f"memory: {gib(-room)} are missing; {_remedy(base, device_bytes, found, per_node)}"
    spent = [name for name, layout, training in _luxuries(base) if _fits(base, layout, training, device_bytes)]
    answer = f"{gib(room)} are free"
    if not spent:
        return f"neither is in the way: {answer}, and what would be faster does not fit"
    return f"throughput: {answer}, enough for {' or '.join(spent)}"


def _remedy(base: Estimate, device_bytes: int, found: Sequence[Change], per_node: int) -> str:
    if found and found[0].fits:
        return f"{found[0].option} is enough, with {gib(device_bytes - found[0].peak_bytes)} to spare"
    together = combined(base, device_bytes, per_node)
    if not together:
        return "no change and no six of them make it fit: it needs more ranks, or a smaller model"
    room = gib(device_bytes - together[-1].peak_bytes)
    return f"no single change is enough, {', then '.join(each.option for each in together)} are: {room} to spare"


def _luxuries(base: Estimate) -> Iterator[tuple[str, Mapping[str, object], Mapping[str, object]]]:
    """What costs memory and makes a step faster."""
    layout, training = base.layout, base.training
    if training.recompute is not Recompute.NONE and training.sequence:
        yield "no recomputation", {}, {"recompute": Recompute.NONE}
    if layout.sharding.stage == 3:
        if layout.reshard_after_forward:
            yield "keeping parameters gathered after the forward", {"reshard_after_forward": False}, {}
        yield "sharding states and gradients alone (ZeRO-2)", {"sharding": Sharding.ZERO_2}, {}
    if training.sequence:
        yield f"a micro-batch of {2 * training.micro_batch}", {}, {"micro_batch": 2 * training.micro_batch}
    if layout.tensor > 1:
        halved = {"tensor": layout.tensor // 2, "data": layout.data * 2}
        alone = {"sequence_parallel": False} if layout.tensor == 2 else {}
        yield f"tensor parallel {layout.tensor // 2}", {**halved, **alone}, {}


def _fits(base: Estimate, layout: Mapping[str, object], training: Mapping[str, object], device_bytes: int) -> bool:
    make: Callable[..., Layout] = dataclasses.replace
    alter: Callable[..., Training] = dataclasses.replace
    try:
        new = estimate(base.model, make(base.layout, **layout), alter(base.training, **training))
    except DistdiagError:
        return False
    return new.worst.total_bytes <= device_bytes
