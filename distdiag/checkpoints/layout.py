"""What the metadata of a sharded checkpoint promises: tensors, chunks that cover each once, and the bytes of these."""

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
Box = tuple[Shape, Shape]
"""Offsets and sizes."""


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


def outside(size: Shape, boxes: Sequence[Box]) -> Iterator[Box]:
    """Yield the boxes that reach beyond the tensor."""
    for offsets, sizes in boxes:
        if any(start + extent > whole for start, extent, whole in zip(offsets, sizes, size, strict=True)):
            yield offsets, sizes


def overlap(boxes: Sequence[Box]) -> tuple[Box, Box] | None:
    """Return two boxes that share an element, None where no two do.

    The boxes are walked along the first dimension; only those that are open at one place are compared.
    """
    solid = sorted(each for each in boxes if math.prod(each[1]))
    open_boxes: list[Box] = []
    for each in solid:
        if not each[0]:
            return (each, solid[1]) if len(solid) > 1 else None
        open_boxes = [other for other in open_boxes if other[0][0] + other[1][0] > each[0][0]]
        for other in open_boxes:
            if _share(each, other):
                return other, each
        open_boxes.append(each)
    return None


def hole(size: Shape, boxes: Sequence[Box]) -> Box | None:
    """Return a box of the tensor that no box covers, None where all of it is covered; boxes may overlap."""
    if not math.prod(size):
        return None
    solid = [each for each in boxes if math.prod(each[1])]
    if not size:
        return None if solid else ((), ())
    if overlap(solid) is None and sum(math.prod(sizes) for _, sizes in solid) == math.prod(size):
        return None
    return _gap(size, solid)


def _share(one: Box, other: Box) -> bool:
    return all(
        one[0][axis] < other[0][axis] + other[1][axis] and other[0][axis] < one[0][axis] + one[1][axis]
        for axis in range(len(one[0]))
    )


def _gap(size: Shape, boxes: Sequence[Box]) -> Box | None:
    """Return an uncovered box: slab after slab between the places where a box begins or ends, then within the slab."""
    if not size:
        return None if boxes else ((), ())
    cuts = sorted({0, size[0], *(cut for (start, *_), (extent, *_) in boxes for cut in (start, start + extent))})
    cuts = cuts[bisect.bisect_left(cuts, 0) : bisect.bisect_right(cuts, size[0])]
    for begin, end in itertools.pairwise(cuts):
        through = [
            (offsets[1:], sizes[1:]) for offsets, sizes in boxes if offsets[0] <= begin and end <= offsets[0] + sizes[0]
        ]
        gap = _gap(size[1:], through)
        if gap is not None:
            return (begin, *gap[0]), (end - begin, *gap[1])
    return None
