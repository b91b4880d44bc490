"""How a job is laid over its ranks: which of them share a replica, a layer, a sequence, the optimizer's states."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from distdiag.errors import DistdiagError
from distdiag.memory_estimate.model import Model


class Schedule(StrEnum):
    """Order in which a pipeline runs its micro-batches."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"


class Sharding(StrEnum):
    """Who cuts parameters, gradients and states over the data-parallel ranks."""

    DDP = "ddp"
    ZERO_1 = "zero1"
    ZERO_1_TENSORS = "zero1-tensors"
    """Whole tensors are dealt out over the ranks (torch's ``ZeroRedundancyOptimizer``)."""
    ZERO_2 = "zero2"
    ZERO_3 = "zero3"
    FSDP = "fsdp"
    """FSDP2, ``fully_shard`` on each block and on the rest; each tensor is cut in its first dimension."""

    @property
    def stage(self) -> int:
        """Return the stage of ZeRO that it amounts to."""
        return {"ddp": 0, "zero1": 1, "zero1-tensors": 1, "zero2": 2}.get(self.value, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Sizes of the parallel dimensions; the world is their product, experts lie across data and context."""

    data: int = 1
    sharding: Sharding = Sharding.DDP
    replicas: int = 1
    """Hybrid sharding: into how many groups, each with all the shards, the data-parallel ranks fall."""
    reshard_after_forward: bool = True
    tensor: int = 1
    sequence_parallel: bool = False
    context: int = 1
    pipeline: int = 1
    schedule: Schedule = Schedule.ONE_F_ONE_B
    chunks: int = 1
    """Parts of the model on each pipeline rank, with an interleaved schedule."""
    micro_batches: int = 1
    """Micro-batches of one rank in one step."""
    expert: int = 1

    @property
    def world(self) -> int:
        """Return how many ranks there are."""
        return self.data * self.tensor * self.context * self.pipeline

    @property
    def shards(self) -> int:
        """Return into how many parts dense tensors are cut where they are sharded."""
        return self.data * self.context // self.replicas

    @property
    def expert_shards(self) -> int:
        """Return the same for the tensors of experts, of which fewer ranks hold copies."""
        return max(self.shards // self.expert, 1)


def check(layout: Layout, model: Model) -> None:
    """Raise ``DistdiagError`` where the sizes do not divide, or contradict one another."""
    for field in dataclasses.fields(layout):
        value = getattr(layout, field.name)
        if type(value) is int and value < 1:
            raise DistdiagError(f"{_words(field.name)} must be at least 1, not {value}", "1 means not split")
    attention = [block.attention for block in model.blocks if block.attention]
    experts = max([block.mlp.experts for block in model.blocks if block.mlp], default=0)
    for problem, hint in (
        *_pipeline_problems(layout, len(model.blocks)),
        *_width_problems(layout, model, min((each.heads for each in attention), default=0)),
        *_expert_problems(layout, experts),
    ):
        raise DistdiagError(problem, hint)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _pipeline_problems(layout: Layout, layers: int) -> Sequence[tuple[str, str]]:
    parts = layout.pipeline * layout.chunks
    problems = []
    if layers < parts:
        problems.append((f"{layers} layers are too few for {parts} pipeline parts", "lower --pp or --chunks"))
    if layout.chunks > 1 and layout.schedule is not Schedule.INTERLEAVED:
        problems.append((f"{layout.chunks} chunks need --schedule interleaved", f"{layout.schedule} runs one per rank"))
    if layout.schedule is Schedule.INTERLEAVED and layout.micro_batches % layout.pipeline:
        needed = f"{layout.micro_batches} micro-batches do not divide by {layout.pipeline} pipeline ranks"
        problems.append((needed, "an interleaved schedule runs them in rounds of that many: --micro-batches"))
    if layers % parts and layout.chunks > 1:
        problems.append((f"{layers} layers do not divide by {parts} pipeline parts", "see --pp and --chunks"))
    return problems


def _width_problems(layout: Layout, model: Model, heads: int) -> Sequence[tuple[str, str]]:
    problems = []
    if heads and heads % layout.tensor:
        problems.append((f"{heads} heads do not divide by tensor parallel size {layout.tensor}", "see --tp"))
    widths = {block.mlp.width for block in model.blocks if block.mlp}
    problems += [
        (f"MLP width {width} does not divide by tensor parallel size {layout.tensor}", "see --tp")
        for width in widths
        if width % layout.tensor
    ]
    if layout.sequence_parallel and layout.tensor == 1:
        problems.append(("sequence parallelism needs tensor parallelism", "it shares the ranks of --tp: say --tp 2"))
    if layout.data * layout.context % layout.replicas:
        total = layout.data * layout.context
        problems.append((f"{total} data-parallel ranks do not divide by {layout.replicas} replicas", "see --replicas"))
    if layout.replicas > 1 and layout.sharding is Sharding.DDP:
        problems.append(("hybrid sharding needs something sharded", "say --zero 1 to 3, or --fsdp"))
    return problems


def _expert_problems(layout: Layout, experts: int) -> Sequence[tuple[str, str]]:
    if layout.expert == 1:
        return []
    if not experts:
        return [("the model has no experts to spread", "leave out --ep, or say --experts")]
    problems = []
    if experts % layout.expert:
        problems.append((f"{experts} experts do not divide by expert parallel size {layout.expert}", "see --ep"))
    if layout.data * layout.context % layout.expert:
        total = layout.data * layout.context
        problems.append((f"expert parallel size {layout.expert} does not divide {total} data-parallel ranks", "--ep"))
    return problems
