"""What the flight recorder calls an operation, in the words of a log: name, peer, types, sizes, what must agree."""

import math
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, Any

import msgspec

MAX_ELEMENTS = 1 << 60
"""No tensor has more; a product of damaged sizes may."""

Sizes = Annotated[
    list[Annotated[list[Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]], msgspec.Meta(max_length=64)]],
    msgspec.Meta(max_length=4096),
]
Splits = Annotated[list[Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]], msgspec.Meta(max_length=1 << 16)]
Names = Annotated[list[Annotated[str, msgspec.Meta(max_length=64)]], msgspec.Meta(max_length=4096)]

UNFIT = (msgspec.ValidationError, RecursionError, UnicodeEncodeError)
"""What the conversion of a value raises that is not what it should be."""

COALESCED = "coalesced"
_SUFFIX = f"_{COALESCED}"
_POINT_TO_POINT = re.compile(r"(send|recv) (\d{1,9}|\?)(->|<-)(\d{1,9}|\?)")
_OPS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "_all_gather_base": "all_gather_into_tensor",
    "all_gather_base": "all_gather_into_tensor",
    "allgather": "all_gather",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_base": "reduce_scatter_tensor",
    "reducescatter": "reduce_scatter",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
    "all_reduce_barrier": "barrier",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
}
_DTYPES = {
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
}
_ITEM_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2}
_DEVICES = {"gloo": "cpu", "mpi": "cpu", "ucc": "cuda", "xccl": "xpu", "hccl": "hpu", "mccl": "mtia"}
_CUDA = re.compile(r"(?:nccl|rccl|c10d).*")

_BY_INPUT = frozenset({"all_reduce", "broadcast", "reduce", "gather", "all_gather_into_tensor"})
_BY_OUTPUT = frozenset({"scatter", "reduce_scatter", "reduce_scatter_tensor", "all_gather"})
_TYPED = _BY_INPUT | _BY_OUTPUT | {"all_to_all", "all_to_all_single"}
OPEN_ENDED = frozenset({"broadcast", "reduce", "gather", "scatter"})
"""Some members may be done with these although others never came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """The name of an operation, taken apart."""

    backend: str
    op: str
    p2p: bool = False
    peer: int | None = None
    """Rank inside the group; None for any."""


def writable(text: str) -> str:
    """Return a text as it can be written: a pickle may hold halves of characters."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def operation(profiling_name: str) -> Operation:
    """Return what ``nccl:all_reduce`` or ``nccl:send 0->1`` means; an unknown name is kept as it is."""
    backend, _, name = writable(profiling_name).rpartition(":")
    match = _POINT_TO_POINT.fullmatch(name)
    if match:
        peer = None if match[4] == "?" else int(match[4])
        op = match[1] if peer is not None or match[1] == "send" else "recv_any_source"
        return Operation(backend=backend, op=op, p2p=True, peer=peer)
    lowered = name.lower()
    if lowered in _OPS:
        return Operation(backend=backend, op=_OPS[lowered])
    if lowered.endswith(_SUFFIX):
        base = lowered.removesuffix(_SUFFIX)
        return Operation(backend=backend, op=_OPS.get(base, base) + _SUFFIX)
    return Operation(backend=backend, op=name or "unknown", p2p=name in ("send", "recv"))


def device_of(backend: str) -> str:
    """Return the kind of device that a backend works on; one that is not known names itself."""
    lowered = backend.lower()
    return _DEVICES.get(lowered) or ("cuda" if not lowered or _CUDA.fullmatch(lowered) else lowered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """What an operation moves."""

    inputs: tuple[tuple[int, ...], ...] = ()
    outputs: tuple[tuple[int, ...], ...] = ()
    dtype: str | None = None
    input_splits: tuple[int, ...] = ()
    output_splits: tuple[int, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the inputs, 0 where their type is not known."""
        size = sum(map(math.prod, self.inputs)) * _ITEM_BYTES.get(self.dtype or "", 1 if self.dtype else 0)
        return min(size, MAX_ELEMENTS)


def tensors(
    input_sizes: Any, output_sizes: Any, input_dtypes: Any, output_dtypes: Any, splits: tuple[Any, Any] = (None, None)
) -> Tensors:
    """Return the sizes and the types that an entry tells, as far as they make sense."""
    ours, theirs = _strings(input_dtypes), _strings(output_dtypes)
    return Tensors(
        inputs=_sizes(input_sizes, ours),
        outputs=_sizes(output_sizes, theirs),
        dtype="/".join(dict.fromkeys(_dtype(name) for name in (*ours, *theirs) if name)) or None,
        input_splits=_splits(splits[0]),
        output_splits=_splits(splits[1]),
    )


def digest(op: str, moved: Tensors, *, typed: bool) -> int:
    """Return 32 bits of what has to be equal on all members; ``typed`` where all of them tell their types.

    Of an operation that is not known only the name has to be.
    """
    base = op.removesuffix(_SUFFIX)
    parts: list[object] = [op]
    if base in _TYPED and typed:
        parts.append(moved.dtype)
    if base in _BY_INPUT:
        parts.append(sum(map(math.prod, moved.inputs)))
    elif base in _BY_OUTPUT:
        # Some backends list the outputs of an all_gather, others tell them as one tensor.
        parts.append(sum(map(math.prod, moved.outputs)))
    return zlib.crc32(repr(parts).encode())


def together(ops: Sequence[str], moved: Sequence[Tensors]) -> tuple[str, Tensors]:
    """Return several coalesced collectives, which share one sequence number, as one."""
    distinct = tuple(dict.fromkeys(op.removesuffix(_SUFFIX) for op in ops))
    return "+".join(distinct) + _SUFFIX, Tensors(
        inputs=tuple(shape for each in moved for shape in each.inputs),
        outputs=tuple(shape for each in moved for shape in each.outputs),
        dtype=next((each.dtype for each in moved if each.dtype is not None), None),
    )


def _sizes(raw: Any, dtypes: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    try:
        sizes = msgspec.convert(raw if raw is not None else [], Sizes)
    except UNFIT:
        return ()
    # A size without dimensions is a scalar where it has a type, else no tensor at all.
    shapes = tuple(tuple(shape) for shape, dtype in zip_longest(sizes, dtypes[: len(sizes)]) if shape or dtype)
    return shapes if sum(map(math.prod, shapes)) < MAX_ELEMENTS else ()


def _strings(raw: Any) -> list[str]:
    if isinstance(raw, str):
        return [writable(raw[:64])]
    try:
        return list(map(writable, msgspec.convert(raw if raw is not None else [], Names)))
    except UNFIT:
        return []


def _splits(raw: Any) -> tuple[int, ...]:
    try:
        return tuple(msgspec.convert(raw if raw is not None else [], Splits))
    except UNFIT:
        return ()


def _dtype(name: str) -> str:
    lowered = name.lower()
    return _DTYPES.get(lowered, lowered)
