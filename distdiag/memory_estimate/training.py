"""How a model is trained: number formats, optimizer, what is recomputed, how long and wide a micro-batch is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from distdiag.errors import DistdiagError
from distdiag.memory_estimate.model import Weight

FP32 = 4


class Recompute(StrEnum):
    """What the backward computes again instead of keeping it."""

    NONE = "none"
    SELECTIVE = "selective"
    """The scores of attention (Korthikanti et al. 2022, section 5)."""
    FULL = "full"
    """Each block keeps its input alone."""


class AttentionKind(StrEnum):
    """Whether the matrix of scores exists in memory."""

    FLASH = "flash"
    EAGER = "eager"


class Loss(StrEnum):
    """What becomes of the logits."""

    STANDARD = "standard"
    """``cross_entropy`` in FP32 while the logits stay alive: they, their log-softmax and two gradients."""
    FUSED = "fused"
    """One FP32 matrix that is turned into its gradient in place (Megatron's vocabulary-parallel one)."""
    CHUNKED = "chunked"
    """Never whole: computed and differentiated in pieces."""


class OptimizerStep(StrEnum):
    """How the optimizer walks over its parameters."""

    FUSED = "fused"
    """In one kernel without temporaries."""
    FOREACH = "foreach"
    """Whole lists at once, so its temporaries are as large as the parameters (torch's default on CUDA)."""
    LOOP = "loop"
    """One tensor after another (torch's default on CPU)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Bytes of one number, by what it belongs to."""

    name: str
    parameter: int
    gradient: int
    compute: int
    """Activations, and parameters where they are gathered for computing."""
    master: int = 0
    """An FP32 copy of the parameters that the optimizer updates."""
    moment: int = FP32
    cast_weights: bool = False
    """Autocast: a copy of each matrix in the format of the computation, from its forward to its backward."""
    why: str = ""

    @property
    def gathered(self) -> int:
        """Return the bytes of a parameter where it is gathered, and of its gradient there."""
        return self.parameter if self.cast_weights else self.compute


PRECISIONS: Mapping[str, Precision] = {
    each.name: each
    for each in (
        Precision(name="fp32", parameter=4, gradient=4, compute=4, why="everything in FP32"),
        Precision(name="bf16", parameter=2, gradient=2, compute=2, moment=2, why="everything in BF16, no master"),
        Precision(
            name="mixed", parameter=2, gradient=2, compute=2, master=4, why="16-bit with an FP32 master (ZeRO, 3.1)"
        ),
        Precision(
            name="mixed-fp32-gradients",
            parameter=2,
            gradient=4,
            compute=2,
            master=4,
            why="16-bit with an FP32 master, gradients summed in FP32 (Megatron)",
        ),
        Precision(
            name="autocast",
            parameter=4,
            gradient=4,
            compute=2,
            cast_weights=True,
            why="FP32 parameters, computing in 16-bit under torch.autocast",
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """What an optimizer keeps, in bytes of ``size`` elements of a weight."""

    name: str
    state: Callable[[Weight, int, int], int]
    """Bytes for a weight, ``size`` elements of it, and the bytes of a moment."""
    formula: str
    source: str
    step: OptimizerStep = OptimizerStep.FUSED
    temporaries: int = 0
    """Tensors of a parameter's size that its update makes beside, where it is not fused."""


ADAM8BIT_BLOCK = 256
"""Elements that share one FP32 scale in each of the two states (bitsandbytes)."""
ADAM8BIT_LEAST = 4096
"""Smaller tensors keep FP32 states (bitsandbytes' ``min_8bit_size``)."""


def _moments(number: int) -> Callable[[Weight, int, int], int]:
    return lambda _, size, moment: number * size * moment


def _adafactor(weight: Weight, size: int, moment: int) -> int:
    """Row and column sums of a matrix, all elements of a vector; they shrink with the part that is held."""
    if not weight.matrix:
        return size * moment
    whole = weight.rows * weight.columns
    return -(-(weight.rows + weight.columns) * size // whole) * moment


def _adam_8bit(weight: Weight, size: int, moment: int) -> int:
    if weight.rows * weight.columns < ADAM8BIT_LEAST:
        return 2 * size * FP32
    return 2 * (size + -(-size // ADAM8BIT_BLOCK) * FP32)


MUON_ELSEWHERE = ("embedding", "positions", "head", "router.weight")


def _muon(weight: Weight, size: int, moment: int) -> int:
    hidden_matrix = weight.matrix and weight.name not in MUON_ELSEWHERE
    return (1 if hidden_matrix else 2) * size * moment


OPTIMIZERS: Mapping[str, Optimizer] = {
    each.name: each
    for each in (
        Optimizer(
            name="adam",
            state=_moments(2),
            formula="two moments",
            source="Kingma and Ba 2015; torch.optim.Adam, foreach",
            step=OptimizerStep.FOREACH,
            temporaries=1,
        ),
        Optimizer(
            name="adam-loop",
            state=_moments(2),
            formula="two moments",
            source="torch.optim.Adam(foreach=False)",
            step=OptimizerStep.LOOP,
            temporaries=2,
        ),
        Optimizer(
            name="adam-fused", state=_moments(2), formula="two moments", source="torch.optim.AdamW(fused=True), Apex"
        ),
        Optimizer(
            name="adam-8bit",
            state=_adam_8bit,
            formula="two moments of 1 byte, a scale per 256",
            source="Dettmers et al. 2022",
        ),
        Optimizer(name="sgd", state=_moments(0), formula="none", source="torch.optim.SGD"),
        Optimizer(name="sgd-momentum", state=_moments(1), formula="one moment", source="torch.optim.SGD(momentum)"),
        Optimizer(name="lion", state=_moments(1), formula="one moment", source="Chen et al. 2023"),
        Optimizer(
            name="adafactor",
            state=_adafactor,
            formula="a row and a column per matrix",
            source="Shazeer and Stern 2018, without first moment",
        ),
        Optimizer(
            name="muon",
            state=_muon,
            formula="one moment for matrices of blocks, two elsewhere",
            source="Jordan et al. 2024; torch.optim.Muon beside AdamW",
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Everything about a step but the model and the layout."""

    sequence: int = 0
    """Tokens of a sample; 0 leaves out activations."""
    micro_batch: int = 1
    """Samples that a data-parallel rank passes through the model at once."""
    precision: Precision = PRECISIONS["mixed"]
    optimizer: Optimizer = OPTIMIZERS["adam-fused"]
    recompute: Recompute = Recompute.NONE
    attention: AttentionKind = AttentionKind.FLASH
    loss: Loss = Loss.STANDARD
    bucket_views: bool = False
    """DDP's ``gradient_as_bucket_view``: gradients live in the buckets instead of beside them."""
    keeps_gathered_sequence: bool = False
    """Sequence parallelism as DTensor does it: linear layers save their gathered input, Megatron gathers again."""
    fragmentation: float = 0.0
    """What the allocator loses, as a part of all tensors."""
    context_bytes: int = 0
    """Memory of the device that no tensor holds: CUDA's context, NCCL's buffers."""


def check(training: Training, *, context: int, tensor: int, sequence_parallel: bool) -> None:
    """Raise ``DistdiagError`` where sizes make no sense or do not divide."""
    if training.sequence < 0 or training.micro_batch < 1:
        raise DistdiagError(
            f"a micro-batch of {training.micro_batch} x {training.sequence} tokens is none",
            "see --sequence and --micro-batch",
        )
    if training.sequence % context:
        raise DistdiagError(
            f"sequence {training.sequence} does not divide by context parallel size {context}", "see --cp"
        )
    if sequence_parallel and training.sequence // context % tensor:
        raise DistdiagError(
            f"{training.sequence // context} tokens do not divide by tensor parallel size {tensor}", "see --tp and --sp"
        )
    if not 0 <= training.fragmentation < 1:
        raise DistdiagError(f"a fragmentation margin of {training.fragmentation} is no part", "0.05 means 5 %")
