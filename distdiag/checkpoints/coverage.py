"""Whether chunks cover a tensor exactly once: no hole, no overlap, nothing outside."""

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence

from distdiag.checkpoints.layout import Shape

Box = tuple[Shape, Shape]
"""Offsets and sizes."""


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
