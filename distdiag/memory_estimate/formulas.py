"""How each item of an estimate comes about, in words that can be checked by hand, and where it is from."""

from dataclasses import dataclass

from distdiag.memory_estimate.layout import Layout, Sharding
from distdiag.memory_estimate.ledger import Item
from distdiag.memory_estimate.model import Model
from distdiag.memory_estimate.share import Stage
from distdiag.memory_estimate.tape import tape, widths
from distdiag.memory_estimate.training import FP32, Loss, Recompute, Training

KORTHIKANTI = "Korthikanti et al. 2022, section 4"
ZERO = "Rajbhandari et al. 2020 (ZeRO), section 3"
FSDP2 = "torch fully_shard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What an estimate is made for."""

    model: Model
    layout: Layout
    training: Training


def count(number: float) -> str:
    """Write a number of parameters or elements: ``8.03 billion``, ``131 million``."""
    for size, unit in ((1e12, " trillion"), (1e9, " billion"), (1e6, " million"), (1e3, " thousand")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"


def formula(item: Item, size: int, stage: Stage, setting: Setting) -> str:
    """Return how the bytes of an item come about on a rank of ``stage``."""
    training, layout = setting.training, setting.layout
    precision = training.precision
    master = precision.master if layout.sharding is Sharding.FSDP else 0
    per_element = {
        Item.PARAMETERS: master or precision.parameter,
        Item.MASTER: precision.master,
        Item.GRADIENTS: master or precision.gradient,
        Item.GATHERED: precision.gathered,
        Item.PREFETCHED: precision.gathered,
        Item.UNIT_GRADIENTS: precision.gathered,
        Item.CASTS: precision.compute,
    }
    if item in per_element:
        bytes_each = per_element[item]
        return f"{bytes_each} bytes · {count(size / bytes_each)}{_cut(item, layout)}"
    logits = f"s·b·V{_over('t', layout.tensor)}"
    whole = {
        Item.MOMENTS: f"{training.optimizer.name}: {training.optimizer.formula}{_cut(item, layout)}",
        Item.ACTIVATIONS: _activations(stage, setting),
        Item.SCORES: f"of a·s²·b{_over('t', layout.tensor)} each, in {len(stage.blocks)} layers",
        Item.LOGITS: f"{logits} · {FP32 if training.loss is Loss.FUSED else FP32 + precision.compute} bytes",
        Item.LOGIT_GRADIENTS: f"{logits}, beside what was saved",
        Item.ATTENTION_TEMPORARIES: "gradients of scores, or what is computed again",
        Item.TEMPORARIES: "gradients of activations and weights in that step",
        Item.BUCKETS: _buckets(layout),
        Item.BORDERS: f"s·b·h at its borders, {layout.micro_batches} micro-batches",
        Item.STEP: f"{training.optimizer.temporaries} of a parameter's size ({training.optimizer.step})",
        Item.CONTEXT: "as given, or assumed for the device",
        Item.FRAGMENTATION: f"{training.fragmentation:.1%} of all tensors",
    }
    return whole[item]


def source(item: Item, setting: Setting) -> str:
    """Return who says so."""
    training, layout = setting.training, setting.layout
    sharded = FSDP2 if layout.sharding is Sharding.FSDP else ZERO
    return {
        Item.PARAMETERS: training.precision.why,
        Item.MASTER: ZERO,
        Item.MOMENTS: training.optimizer.source,
        Item.GRADIENTS: training.precision.why,
        Item.GATHERED: sharded,
        Item.PREFETCHED: sharded,
        Item.UNIT_GRADIENTS: sharded,
        Item.BUCKETS: "torch DistributedDataParallel" if layout.sharding.stage == 0 else sharded,
        Item.BORDERS: "torch.distributed.pipelining",
        Item.CASTS: "torch.autocast's cache",
        Item.ACTIVATIONS: _activation_source(setting),
        Item.SCORES: KORTHIKANTI,
        Item.LOGITS: f"{KORTHIKANTI}; torch cross_entropy" if training.loss is Loss.STANDARD else KORTHIKANTI,
        Item.LOGIT_GRADIENTS: "torch cross_entropy",
        Item.ATTENTION_TEMPORARIES: "torch autograd",
        Item.TEMPORARIES: "torch autograd",
        Item.STEP: training.optimizer.source,
        Item.CONTEXT: "assumption; see --context-gib",
        Item.FRAGMENTATION: "assumption; see --fragmentation",
    }[item]


def _activation_source(setting: Setting) -> str:
    if setting.model.measured:
        return "what autograd saved in a forward on the meta device"
    return KORTHIKANTI if setting.training.recompute is not Recompute.FULL else f"Chen et al. 2016; {KORTHIKANTI}"


def _over(name: str, size: int) -> str:
    return f"/{name}" if size > 1 else ""


def _cut(item: Item, layout: Layout) -> str:
    """Say by what the model was cut to come to a rank's part."""
    stage = {Item.PARAMETERS: 3, Item.GRADIENTS: 2, Item.MASTER: 1, Item.MOMENTS: 1}.get(item, 4)
    cuts = [
        f"{name} {size}"
        for name, size, applies in (
            ("shards", layout.shards, layout.sharding.stage >= stage),
            ("TP", layout.tensor, True),
            ("PP", layout.pipeline, item in (Item.PARAMETERS, Item.GRADIENTS, Item.MASTER, Item.MOMENTS)),
            ("EP", layout.expert, True),
        )
        if applies and size > 1
    ]
    return f" ({', '.join(cuts)})" if cuts else ""


def _activations(stage: Stage, setting: Setting) -> str:
    model, layout, training = setting.model, setting.layout, setting.training
    if model.measured or not training.sequence or not stage.blocks:
        return "as measured on the meta device"
    size = widths(training, layout, model.hidden)
    one = tape(stage.blocks[-1], model, layout, training)
    plane = size.tokens * model.hidden
    of_one = (one.saved - sum(step.scores for step in one.steps)) / plane
    held = f"{len(stage.blocks) // stage.chunks} layers"
    if stage.in_flight > 1:
        held += f" · {stage.in_flight} in flight"
    if training.recompute is Recompute.FULL:
        return f"s·b·h · ({held} · {one.stream / plane:.3g} + one layer · {of_one:.3g} bytes)"
    return f"s·b·h · {held} · {of_one:.3g} bytes"


def _buckets(layout: Layout) -> str:
    return {
        Sharding.DDP: "a copy of all gradients in DDP's buckets",
        Sharding.ZERO_1_TENSORS: "a copy of all gradients in DDP's buckets",
        Sharding.FSDP: "input of a reduce-scatter: one unit's gradients",
    }.get(layout.sharding, "a bucket of up to 5e8 gradients (DeepSpeed)")
