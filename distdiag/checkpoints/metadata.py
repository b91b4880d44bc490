"""Reads the metadata of a sharded checkpoint, which is a pickle, without running anything that it names.

A pickle is a program that may name and call any function. Here the names that ``torch.distributed.checkpoint``
writes lead to plain stand-ins, and every other name ends the reading.
"""

import io
import math
import pickle
import pickletools
from collections.abc import Callable
from typing import Any

from distdiag.checkpoints.layout import Chunk, Item, Layout, PathOf, Shape, Tensor

MAX_BYTES = 1 << 30
"""Thousands of ranks with thousands of tensors need some hundred megabytes."""
MAX_ELEMENTS = 1 << 62
READ_AHEAD_BYTES = 1 << 17
_MEMO = ("PUT", "BINPUT", "LONG_BINPUT")

DAMAGES = (
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    ImportError,
    IndexError,
    KeyError,
    MemoryError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What the unpickler raises on bytes that are no whole pickle."""


class UnreadableError(ValueError):
    """The metadata is damaged, or names what no metadata needs."""


class RefusedError(UnreadableError):
    """The metadata names something that is not on the list; it was not run."""


class _Object:
    """Stands in for an object of torch: it keeps what it was made of and does nothing."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = {}

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def get(self, name: str) -> Any:
        """Return a field, None where it is not there."""
        return self.state.get(name) if isinstance(self.state, dict) else None


class _Metadata(_Object): ...


class _TensorMetadata(_Object): ...


class _BytesMetadata(_Object): ...


class _ChunkMetadata(_Object): ...


class _Properties(_Object): ...


class _Index(_Object): ...


class _StorageInfo(_Object): ...


class _StorageMeta(_Object): ...


class _Function:
    """Stands in for a function of torch; unlike a function of Python it has nothing that a pickle could set."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *arguments: Any) -> Any:
        return self._make(*arguments)


def _size(numbers: Any = ()) -> Shape:
    return tuple(int(number) for number in numbers)


def _joined(*parts: Any) -> str:
    return "/".join(str(part) for part in parts)


def _first(*arguments: Any) -> Any:
    return arguments[0] if arguments else None


_CHECKPOINT = "torch.distributed.checkpoint"
_SHARDED = "torch.distributed._shard.sharded_tensor.metadata"
_STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    (f"{_CHECKPOINT}.metadata", "Metadata"): _Metadata,
    (f"{_CHECKPOINT}.metadata", "TensorStorageMetadata"): _TensorMetadata,
    (f"{_CHECKPOINT}.metadata", "BytesStorageMetadata"): _BytesMetadata,
    (f"{_CHECKPOINT}.metadata", "ChunkStorageMetadata"): _ChunkMetadata,
    (f"{_CHECKPOINT}.metadata", "TensorProperties"): _Properties,
    (f"{_CHECKPOINT}.metadata", "MetadataIndex"): _Index,
    (f"{_CHECKPOINT}.metadata", "StorageMeta"): _StorageMeta,
    (f"{_CHECKPOINT}.metadata", "_MEM_FORMAT_ENCODING"): _Function(_first),
    (f"{_CHECKPOINT}.filesystem", "_StorageInfo"): _StorageInfo,
    (_SHARDED, "TensorProperties"): _Properties,
    (_SHARDED, "MEM_FORMAT_ENCODING"): _Function(_first),
    ("torch", "Size"): _Function(_size),
    ("torch.serialization", "_get_layout"): _Function(_first),
    ("pathlib", "PosixPath"): _Function(_joined),
    ("pathlib", "WindowsPath"): _Function(_joined),
    ("pathlib._local", "PosixPath"): _Function(_joined),
    ("collections", "OrderedDict"): dict,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        if module == "torch" and name.isidentifier() and name[0].islower():
            return name  # a dtype: the only lower-case names of torch that metadata hold, and here no more than a text
        if (module, name) not in _STAND_INS:
            raise RefusedError(f"it names {module}.{name}, which no checkpoint's metadata needs")
        return _STAND_INS[module, name]


def check_memo(data: bytes) -> None:
    """Refuse a pickle whose memo has places far beyond its end: the unpickler makes room for all places below."""
    for instruction, argument, _ in pickletools.genops(data):
        if instruction.name in _MEMO and int(argument or 0) > len(data):
            raise RefusedError(f"it asks for room for {argument} values, and has {len(data)} bytes")


def read_metadata(data: bytes) -> Layout:
    """Return the layout that a ``.metadata`` file holds; raise ``UnreadableError`` for whatever is not one."""
    if len(data) > MAX_BYTES:
        raise UnreadableError(f"it has {len(data)} bytes, and at most {MAX_BYTES} are read")
    try:
        check_memo(data)
        root = _Unpickler(io.BufferedReader(io.BytesIO(data), READ_AHEAD_BYTES)).load()
        return _layout(root)
    except RefusedError:
        raise
    except DAMAGES as error:
        raise UnreadableError(f"it is no whole metadata ({str(error) or type(error).__name__})") from error


def _layout(root: Any) -> Layout:
    if not isinstance(root, _Metadata):
        raise TypeError("it holds no Metadata")
    stored = {_key(index): _item(info) for index, info in dict(root.get("storage_data") or {}).items()}
    tensors: dict[str, Tensor] = {}
    values: dict[str, Item | None] = {}
    for name, described in dict(root.get("state_dict_metadata")).items():
        if isinstance(described, _TensorMetadata):
            tensors[name] = _tensor(name, described, stored)
        elif isinstance(described, _BytesMetadata):
            values[name] = stored.pop((name, None), None)
        else:
            raise TypeError(f"{name} is neither a tensor nor bytes")
    meta = root.get("storage_meta")
    return Layout(
        tensors=tensors,
        values=values,
        paths=_paths(root.get("planner_data")),
        strays={name: item for (name, _), item in stored.items()},
        version=_text(root.get("version")),
        save_id=_text(meta.get("save_id")) if isinstance(meta, _StorageMeta) else None,
    )


def _tensor(name: str, described: _TensorMetadata, stored: dict[tuple[str, Shape | None], Item]) -> Tensor:
    size = _shape(described.get("size"))
    chunks = []
    for chunk in described.get("chunks"):
        offsets, sizes = _shape(chunk.get("offsets")), _shape(chunk.get("sizes"))
        if len(offsets) != len(size) or len(sizes) != len(size):
            raise ValueError(f"a chunk of {name} has other dimensions than the tensor")
        chunks.append(Chunk(offsets=offsets, sizes=sizes, item=stored.pop((name, offsets), None)))
    return Tensor(name=name, dtype=_dtype(described.get("properties")), size=size, chunks=tuple(chunks))


def _dtype(properties: Any) -> str:
    if not isinstance(properties, _Properties):
        raise TypeError("a tensor has no properties")
    state = properties.state
    dtype = state[0] if isinstance(state, tuple | list) else state.get("dtype")
    if not isinstance(dtype, str):
        raise TypeError("a tensor has no dtype")
    return dtype


def _key(index: Any) -> tuple[str, Shape | None]:
    if not isinstance(index, _Index) or not isinstance(index.get("fqn"), str):
        raise TypeError("a range of bytes belongs to nothing")
    offset = index.get("offset")
    return index.get("fqn"), None if offset is None else _shape(offset)


def _item(info: Any) -> Item:
    if not isinstance(info, _StorageInfo):
        raise TypeError("a range of bytes is described in an unknown way")
    file, offset, length = info.get("relative_path"), info.get("offset"), info.get("length")
    if not isinstance(file, str) or not _count(offset) or not _count(length):
        raise TypeError("a range of bytes lacks its file, offset or length")
    return Item(file=file, offset=offset, length=length, transformed=bool(info.get("transform_descriptors")))


def _shape(value: Any) -> Shape:
    if not isinstance(value, tuple) or not all(_count(number) for number in value):
        raise TypeError("a shape is no list of sizes")
    if math.prod(value) > MAX_ELEMENTS:
        raise ValueError("a shape is larger than any memory")
    return value


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_ELEMENTS


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _paths(planned: Any) -> dict[str, PathOf]:
    if not isinstance(planned, dict):
        return {}
    return {
        name: path
        for name, path in planned.items()
        if isinstance(name, str) and isinstance(path, tuple) and all(isinstance(part, str | int) for part in path)
    }
