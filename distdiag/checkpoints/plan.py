"""What a drill loads and compares: tensors with the checksums of their chunks, and the values that are safe to load."""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from distdiag.checkpoints.archives import BrokenError, Window, open_archive
from distdiag.checkpoints.contents import Stored, read_content
from distdiag.checkpoints.layout import Shape
from distdiag.checkpoints.metadata import read_metadata
from distdiag.checkpoints.records import METADATA
from distdiag.checkpoints.shards import Entry, entries_by_file


class ChunkPlan(msgspec.Struct, kw_only=True):
    """A box of a tensor and the CRC-32 of its bytes as they lie in the shard."""

    offsets: Shape
    sizes: Shape
    stride: Shape
    crc: int


class TensorPlan(msgspec.Struct, kw_only=True):
    """A tensor to be loaded."""

    dtype: str
    size: Shape
    chunks: list[ChunkPlan] = []


class Plan(msgspec.Struct, kw_only=True):
    """What every rank of a drill is told."""

    directory: str
    tensors: dict[str, TensorPlan]
    values: list[str]
    """Values that are plain: loading others would run what they name."""
    left_out: list[str]


def plan_of(directory: Path) -> Plan:
    """Return the plan for a checkpoint that is whole; raises ``OSError`` and ``UnreadableError``."""
    layout = read_metadata((directory / METADATA).read_bytes())
    plan = Plan(
        directory=str(directory.absolute()),
        tensors={name: TensorPlan(dtype=each.dtype, size=each.size) for name, each in layout.tensors.items()},
        values=[],
        left_out=[],
    )
    for file, entries in entries_by_file(layout).items():
        _add(plan, directory / file, entries)
    return plan


def _add(plan: Plan, path: Path, entries: Sequence[Entry]) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for entry in entries:
            try:
                archive, packed = open_archive(Window(descriptor, entry.item.offset, entry.item.length))
                content = read_content(archive, packed)
            except BrokenError:  # an extension of the writer changed the bytes
                _leave_out(plan, entry)
                continue
            if entry.chunk is None:
                (plan.left_out if content.foreign else plan.values).append(entry.name)
                continue
            stored = content.value
            record = archive.record(stored.storage) if isinstance(stored, Stored) else None
            if isinstance(stored, Stored) and record is not None and archive.checked and _is_dense(stored):
                chunk = ChunkPlan(
                    offsets=entry.chunk.offsets, sizes=entry.chunk.sizes, stride=stored.stride, crc=record.CRC
                )
                plan.tensors[entry.name].chunks.append(chunk)
    finally:
        os.close(descriptor)


def _leave_out(plan: Plan, entry: Entry) -> None:
    if entry.chunk is None:
        plan.left_out.append(entry.name)


def _is_dense(stored: Stored) -> bool:
    """Return whether a storage holds the elements of its tensor and nothing else."""
    count = 1
    for extent in stored.shape:
        count *= extent
    return count == stored.storage_elements and count > 0
