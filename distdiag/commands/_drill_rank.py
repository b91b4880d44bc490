"""One rank of a drill: loads its part of a checkpoint, puts the tensors together and compares them.

Run as ``python -m distdiag.commands._drill_rank FOLDER RANK WORLD``; what it saw goes to ``FOLDER/RANK.json``.
"""

import contextlib
import json
import math
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import msgspec

from distdiag.checkpoints.layout import Shape
from distdiag.checkpoints.plan import ChunkPlan, Plan


def main(folder: Path, rank: int, world: int) -> None:
    """Load, compare and tell."""
    import torch.distributed

    distributed: Any = torch.distributed
    plan = msgspec.json.decode((folder / "plan.json").read_bytes(), type=Plan)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    state = _empty(plan, world)
    told = _load(plan, state)
    told |= _compare(plan, state, rank, world)
    (folder / f"{rank}.json").write_text(json.dumps(told))
    distributed.barrier()
    distributed.destroy_process_group()


def _empty(plan: Plan, world: int) -> dict[str, Any]:
    """Return a state of the checkpoint's shape, each tensor split over the ranks along its first dimension."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, empty

    mesh = init_device_mesh("cpu", (world,))
    state: dict[str, Any] = dict.fromkeys(plan.values)
    for name, tensor in plan.tensors.items():
        dtype = getattr(torch, tensor.dtype)
        if tensor.size:
            state[name] = empty(*tensor.size, dtype=dtype, device_mesh=mesh, placements=[Shard(0)])
        else:
            state[name] = torch.empty((), dtype=dtype)
    return state


def _load(plan: Plan, state: dict[str, Any]) -> dict[str, Any]:
    import torch.distributed.checkpoint

    loader: Any = torch.distributed.checkpoint
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # begins the peak anew
    before = _memory("VmRSS")
    begun = time.monotonic()
    loader.load(state, checkpoint_id=plan.directory)
    seconds = time.monotonic() - begun
    peak = _memory("VmHWM")
    return {"seconds": seconds, "peak_bytes": peak, "grown_bytes": max(0, peak - before)}


def _memory(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def _compare(plan: Plan, state: dict[str, Any], rank: int, world: int) -> dict[str, Any]:
    """Put one tensor after the other together on rank 0, which compares its chunks with their checksums."""
    compared, wrong = 0, []
    for name, tensor in plan.tensors.items():
        whole = _gathered(state[name], tensor.size, rank, world) if tensor.size else state[name]
        if rank:
            continue
        for chunk in tensor.chunks:
            compared += 1
            if _crc(whole, chunk) != chunk.crc:
                wrong.append(f"{name} at {list(chunk.offsets)}")
    return {"compared": compared, "wrong": wrong}


def _gathered(value: Any, size: Shape, rank: int, world: int) -> Any:
    """Return a tensor whose rows are split over the ranks, on rank 0; as bytes, for gloo does not know all types."""
    import torch.distributed

    distributed: Any = torch.distributed
    local = value.to_local().contiguous().flatten().view(torch.uint8)
    if rank:
        if local.numel():
            distributed.send(local, 0)
        return None
    parts, rows = [local], -(-size[0] // world)
    for other in range(1, world):
        own = max(0, min(rows, size[0] - other * rows))
        part: Any = torch.empty(own * math.prod(size[1:]) * value.element_size(), dtype=torch.uint8)
        if part.numel():
            distributed.recv(part, other)
        parts.append(part)
    return torch.cat(parts).view(value.dtype).reshape(size)


def _crc(whole: Any, chunk: ChunkPlan) -> int:
    """Return the CRC-32 of a chunk's bytes in the order in which the shard holds them."""
    import torch

    box = tuple(slice(start, start + extent) for start, extent in zip(chunk.offsets, chunk.sizes, strict=True))
    laid_out: Any = torch.empty_strided(chunk.sizes, chunk.stride, dtype=whole.dtype)
    laid_out.copy_(whole[box])
    flat = laid_out.as_strided((laid_out.numel(),), (1,))
    return zlib.crc32(flat.view(torch.uint8).numpy())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
