"""A program for several ranks: small transformers trained in several ways, each measured by torch's MemTracker.

The ways are named in the variable ``WAYS``, separated by spaces: ``ddp``, ``ddp/full`` with activation checkpointing.
Each rank prints, as JSON, the bytes by category at each way's peak. Two steps are trained, so that the optimizer's
states are there in the second.

What a peak's categories are: ``Activation`` is all that a forward made (with it DDP's buckets, the buffers of
pipeline stages, and what checkpointing computes again), ``Temp`` all that a backward made and is no parameter's
gradient. With pipelines it is not known what is computed again: it counts as ``Temp``.
"""

import json
import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

LAYERS, HIDDEN, HEADS, KV_HEADS, VOCABULARY, SEQUENCE, SAMPLES = 4, 64, 4, 2, 128, 128, 4
WIDTH = 4 * HIDDEN
MICRO_BATCHES = 4


def dropped(x: torch.Tensor) -> torch.Tensor:
    """Dropout as CUDA does it, whose mask has a byte for an element; CPU's own has a number."""
    result: torch.Tensor = torch.native_dropout(x, 0.1, True)[0]
    return result


class Attention(nn.Module):
    def __init__(self, scores: bool) -> None:
        super().__init__()
        self.size = HIDDEN // HEADS
        kv_heads = HEADS if scores else KV_HEADS
        self.query = nn.Linear(HIDDEN, HIDDEN)
        self.key = nn.Linear(HIDDEN, kv_heads * self.size)
        self.value = nn.Linear(HIDDEN, kv_heads * self.size)
        self.out = nn.Linear(HIDDEN, HIDDEN)
        self.scores = scores

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            each(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        if self.scores:
            weights = dropped(torch.softmax((q * self.size**-0.5) @ k.transpose(2, 3), -1))
            mixed = weights @ v
        else:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        result: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return result


class Mlp(nn.Module):
    def __init__(self, gated: bool) -> None:
        super().__init__()
        self.up = nn.Linear(HIDDEN, WIDTH)
        self.gate = nn.Linear(HIDDEN, WIDTH) if gated else None
        self.down = nn.Linear(WIDTH, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = functional.gelu(self.up(x)) if self.gate is None else functional.silu(self.gate(x)) * self.up(x)
        result: torch.Tensor = self.down(inner)
        return result


class Block(nn.Module):
    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(HIDDEN)
        self.attention = Attention(scores=plain)
        self.norm2 = nn.LayerNorm(HIDDEN)
        self.mlp = Mlp(gated=not plain)
        self.drops = plain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self._dropped(self.attention(self.norm1(x)))
        return x + self._dropped(self.mlp(self.norm2(x)))

    def _dropped(self, x: torch.Tensor) -> torch.Tensor:
        return dropped(x) if self.drops else x


class Transformer(nn.Module):
    """A stack of blocks; a pipeline stage has only some of them, and not both ends."""

    def __init__(self, full: bool, *, plain: bool = False, part: int = 0, parts: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN) if part == 0 else None
        self.blocks = nn.ModuleList(Block(plain) for _ in range(LAYERS // parts))
        self.norm = nn.LayerNorm(HIDDEN) if part == parts - 1 else None
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False) if part == parts - 1 else None
        self.full = full

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.full else block(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


class OnlyBackwards:
    """In place of the tracker of modules, whose hooks pipeline stages do not stand."""

    @property
    def is_bw(self) -> bool:
        """Whether a backward runs."""
        return torch._C._current_graph_task_id() != -1  # as the original asks

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...
    def register_user_hooks(self, *_: object) -> None: ...
    def clear_user_hooks(self) -> None: ...


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    tokens: torch.Tensor,
    tracker: MemTracker,
    *,
    autocast: bool = False,
) -> None:
    """Train two steps; the logits are kept during the backward, as by most training loops."""
    for _ in range(2):
        tracker.reset_mod_stats()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            logits = model(tokens[:, :-1])
            loss = loss_of(logits, tokens[:, 1:])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        del logits, loss


def tokens_of(samples: int = SAMPLES) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (samples, SEQUENCE + 1))


def one(full: bool, *, plain: bool = False, dtype: torch.dtype = torch.float32, autocast: bool = False) -> MemTracker:
    tracker, tokens = MemTracker(), tokens_of()
    with tracker:
        model = Transformer(full, plain=plain).to(dtype)
        train(model, torch.optim.Adam(model.parameters()), tokens, tracker, autocast=autocast)
    return tracker


def ddp(full: bool, *, zero: bool = False) -> MemTracker:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    tracker, tokens = MemTracker(), tokens_of()
    with tracker:
        model = nn.parallel.DistributedDataParallel(Transformer(full))
        parameters = model.parameters()
        optimizer = (
            ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.Adam)
            if zero
            else torch.optim.Adam(parameters)
        )
        train(model, optimizer, tokens, tracker)
    return tracker


def fsdp(full: bool, *, mixed: bool = False) -> MemTracker:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model, tokens = Transformer(full), tokens_of()
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if mixed else MixedPrecisionPolicy()
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.Adam(model.parameters())
    tracker = FSDPMemTracker(model, optimizer)
    tracker.track_inputs((tokens,))
    with tracker:
        train(model, optimizer, tokens, tracker)
    return tracker


def tensor(full: bool, *, sequence: bool = False) -> MemTracker:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        ParallelStyle,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        loss_parallel,
        parallelize_module,
    )

    stream = Shard(1) if sequence else Replicate()
    block: dict[str, ParallelStyle] = {
        "attention.out": RowwiseParallel(output_layouts=stream),
        "mlp.down": RowwiseParallel(output_layouts=stream),
    }
    block |= {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
    block |= {f"mlp.{name}": ColwiseParallel() for name in ("up", "gate")}
    outside: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
        "head": ColwiseParallel(input_layouts=stream, output_layouts=Shard(-1), use_local_output=False),
    }
    if sequence:
        gather = partial(PrepareModuleInput, input_layouts=Shard(1), desired_input_layouts=Replicate())
        block |= {"norm1": SequenceParallel(), "norm2": SequenceParallel(), "attention": gather(), "mlp": gather()}
        outside["norm"] = SequenceParallel()
    model, tokens, tracker = Transformer(full), tokens_of(), MemTracker()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for each in model.blocks:
        parallelize_module(each, mesh, block)
    parallelize_module(model, mesh, outside)
    optimizer = torch.optim.Adam(model.parameters())
    tracker.track_external(model, optimizer, tokens)
    with tracker, loss_parallel():
        train(model, optimizer, tokens, tracker)
    return tracker


def pipeline(full: bool, *, schedule: str) -> MemTracker:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

    rank, ranks = dist.get_rank(), dist.get_world_size()
    chunks = 2 if schedule == "interleaved" else 1
    tracker = MemTracker()
    tracker._mod_tracker = OnlyBackwards()  # type: ignore[assignment]  # all that is used of it
    tokens = tokens_of(SAMPLES * MICRO_BATCHES)
    with tracker:
        parts = [Transformer(full, part=part, parts=chunks * ranks) for part in range(rank, chunks * ranks, ranks)]
        for part in parts:
            tracker._track_module_params_and_buffers(part)
        stages = [
            PipelineStage(part, rank + number * ranks, chunks * ranks, torch.device("cpu"))
            for number, part in enumerate(parts)
        ]
        more: dict[str, Any] = {"n_microbatches": MICRO_BATCHES, "loss_fn": loss_of}
        run: Any = {
            "gpipe": lambda: ScheduleGPipe(stages[0], **more),  # type: ignore[no-untyped-call]  # torch has no types
            "1f1b": lambda: Schedule1F1B(stages[0], **more),
            "interleaved": lambda: ScheduleInterleaved1F1B(list(stages), **more),
        }[schedule]()
        optimizer = torch.optim.Adam(parameter for part in parts for parameter in part.parameters())
        for _ in range(2):
            inputs = (tokens[:, :-1],) if rank == 0 else ()
            run.step(*inputs, target=tokens[:, 1:] if rank == ranks - 1 else None)
            optimizer.step()
            optimizer.zero_grad()
    return tracker


WAYS: dict[str, Callable[[bool], MemTracker]] = {
    "one": one,
    "scores": partial(one, plain=True),
    "bf16": partial(one, dtype=torch.bfloat16),
    "autocast": partial(one, autocast=True),
    "ddp": ddp,
    "zero1": partial(ddp, zero=True),
    "fsdp": fsdp,
    "fsdp-mixed": partial(fsdp, mixed=True),
    "tensor": tensor,
    "sequence": partial(tensor, sequence=True),
    "gpipe": partial(pipeline, schedule="gpipe"),
    "1f1b": partial(pipeline, schedule="1f1b"),
    "interleaved": partial(pipeline, schedule="interleaved"),
}


def peak(tracker: MemTracker) -> dict[str, int]:
    (snapshot,) = tracker.get_tracker_snapshot("peak").values()
    return {str(getattr(kind, "value", kind)): size for kind, size in snapshot.items()}


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    told = {}
    for way in os.environ["WAYS"].split():
        name, _, recompute = way.partition("/")
        told[way] = peak(WAYS[name](recompute == "full"))
    dist.destroy_process_group()
    print(json.dumps(told))  # noqa: T201 - how a program tells the test


if __name__ == "__main__":
    main()
