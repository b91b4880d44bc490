"""What the metadata of a sharded checkpoint promises: tensors, their chunks, and the bytes that hold them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

ITEM_BYTES: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
}
"""Bytes of one element by the name of torch's dtype; of a type that is not here, sizes are not compared."""

Shape = tuple[int, ...]
PathOf = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A range of bytes that holds one chunk of a tensor, or one other value."""

    file: str
    """Relative to the checkpoint's folder."""
    offset: int
    length: int
    transformed: bool = False
    """An extension of the writer changed the bytes (compression, encryption): only it can read them."""

    @property
    def end(self) -> int:
        """Return the first byte after the range."""
        return self.offset + self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A box of a tensor; ``item`` is None where the metadata does not say where its bytes are."""

    offsets: Shape
    sizes: Shape
    item: Item | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor as the whole world holds it."""

    name: str
    dtype: str
    size: Shape
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Everything that one checkpoint's metadata says."""

    tensors: Mapping[str, Tensor]
    values: Mapping[str, Item | None]
    """Whatever is no tensor, by name: numbers, texts, lists."""
    paths: Mapping[str, PathOf]
    """Where a name stands in the nested state, where the planner tells it."""
    strays: Mapping[str, Item]
    """Ranges of bytes that belong to nothing that the metadata names."""
    version: str | None
    save_id: str | None

    def items(self) -> Iterable[tuple[str, Item, Tensor | None, Chunk | None]]:
        """Yield name, range, tensor and chunk of everything that has bytes."""
        for tensor in self.tensors.values():
            for chunk in tensor.chunks:
                if chunk.item is not None:
                    yield tensor.name, chunk.item, tensor, chunk
        for name, item in self.values.items():
            if item is not None:
                yield name, item, None, None


def box(offsets: Shape, sizes: Shape) -> str:
    """Write a box as ``[0:4, 0:7]``; nothing for a scalar."""
    if not sizes:
        return ""
    return f"[{', '.join(f'{start}:{start + size}' for start, size in zip(offsets, sizes, strict=True))}]"


def merged(layouts: Iterable[Layout]) -> Layout:
    """Return what several ranks' metadata promise together; chunks that several ranks wrote stay apart."""
    parts = list(layouts)
    tensors: dict[str, Tensor] = {}
    for part in parts:
        for name, tensor in part.tensors.items():
            known = tensors.get(name)
            chunks = tensor.chunks if known is None else known.chunks + tensor.chunks
            tensors[name] = Tensor(name=name, dtype=tensor.dtype, size=tensor.size, chunks=chunks)
    return Layout(
        tensors=tensors,
        values={f"{name}@{index}": item for index, part in enumerate(parts) for name, item in part.values.items()},
        paths={name: path for part in parts for name, path in part.paths.items()},
        strays={name: item for part in parts for name, item in part.strays.items()},
        version=parts[0].version,
        save_id=None,
    )
