"""Reads the header of a safetensors file, and the index of a model that is split into several."""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distdiag.checkpoints.archives import Window
from distdiag.checkpoints.layout import Shape
from distdiag.checkpoints.problems import CORRUPT, INCOMPLETE, Problem, span

INDEX = ".safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
LENGTH_BYTES = 8
SAFE_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "BOOL": 1, "C64": 8,
}  # fmt: skip
"""Bytes of an element by the name of its type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A tensor and its bytes, counted from the end of the header."""

    dtype: str
    shape: Shape
    start: int
    end: int


def read_header(name: str, window: Window) -> tuple[Mapping[str, Placed], Problem | None]:
    """Return the tensors that a file holds, and what is wrong with it; the contents have no checksums."""
    size = int.from_bytes(window.at(0, LENGTH_BYTES), "little")
    base = LENGTH_BYTES + size
    if window.length < LENGTH_BYTES or size > min(MAX_HEADER_BYTES, window.length - LENGTH_BYTES):
        summary = f"{name} ends at byte {window.length}, within its header of {size} bytes"
        return {}, Problem(finding=INCOMPLETE, kind="truncated", summary=summary, file=name)
    try:
        header = json.loads(window.at(LENGTH_BYTES, size))
        tensors = {key: _placed(value) for key, value in header.items() if key != "__metadata__"}
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        summary = f"{name}, {span(LENGTH_BYTES, base)}: its header is damaged ({error})"
        return {}, Problem(finding=CORRUPT, kind="header", summary=summary, file=name, start=LENGTH_BYTES, end=base)
    return tensors, next(_misplaced(name, base, window.length, tensors), None)


def _placed(value: Any) -> Placed:
    (start, end), shape = value["data_offsets"], value["shape"]
    return Placed(dtype=str(value["dtype"]), shape=tuple(map(int, shape)), start=int(start), end=int(end))


def _misplaced(name: str, base: int, size: int, tensors: Mapping[str, Placed]) -> Iterator[Problem]:
    """Yield what keeps the tensors from filling the file one behind the other."""
    at = 0
    for key, tensor in sorted(tensors.items(), key=lambda each: (each[1].start, each[1].end)):
        start, end = base + tensor.start, base + tensor.end
        about = f"{name}, {span(start, end)} ({key})"
        here = Problem(finding=CORRUPT, kind="bytes-shared", summary="", file=name, tensor=key, start=start, end=end)
        needed = math.prod(tensor.shape) * SAFE_BYTES.get(tensor.dtype, 0)
        if end > size:
            summary = f"{about}: the file ends at byte {size}"
            yield replace(here, finding=INCOMPLETE, kind="truncated", summary=summary)
        if tensor.start != at:
            which = "lie on top of the tensor before them" if tensor.start < at else "leave a hole before them"
            yield replace(here, summary=f"{about} {which}")
        if needed and needed != end - start:
            yield replace(here, kind="short-tensor", summary=f"{about}: the tensor needs {needed} bytes")
        at = tensor.end
    if base + at < size:
        summary = f"{name}, {span(base + at, size)}: bytes that its header does not know follow the last tensor"
        yield Problem(finding=CORRUPT, kind="surplus-bytes", summary=summary, file=name, start=base + at, end=size)


def check_index(file: Path, tensors: Mapping[str, Mapping[str, Shape]]) -> Iterator[Problem]:
    """Yield which of the files that an index names is not there, or does not hold a tensor that it should."""
    try:
        placed = dict(json.loads(file.read_bytes())["weight_map"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        summary = f"{file.name} is damaged ({error})"
        yield Problem(finding=CORRUPT, kind="index", summary=summary, file=file.name)
        return
    by_file: defaultdict[str, list[str]] = defaultdict(list)
    for key, name in placed.items():
        by_file[str(name)].append(str(key))
    for name, keys in sorted(by_file.items()):
        if not (file.parent / name).is_file():
            summary = f"{name} is not there; {file.name} says that it holds {len(keys)} tensors, first {keys[0]}"
            yield Problem(finding=INCOMPLETE, kind="missing-file", summary=summary, file=name)
        elif name in tensors and not tensors[name].keys() >= set(keys):
            lacking = next(each for each in keys if each not in tensors[name])
            summary = f"{name} does not hold {lacking}, which {file.name} says it does"
            yield Problem(finding=INCOMPLETE, kind="other-tensor", summary=summary, file=name, tensor=lacking)
