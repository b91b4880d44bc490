"""Reads the pickle in an archive of ``torch.save``, without torch and without running it."""

import io
import pickle
import zipfile
from dataclasses import dataclass
from typing import Any

from distdiag.checkpoints.archives import BROKEN, Archive, BrokenError
from distdiag.checkpoints.layout import Shape
from distdiag.checkpoints.metadata import DAMAGES, check_memo

MOST_NAMES = 100
"""Tensors that share one storage, of which so many are named at most."""
MAX_PICKLE_BYTES = 256 << 20

STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}
"""Dtype of the elements by the class of their storage; an ``UntypedStorage`` counts bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A tensor as the pickle inside an archive describes it."""

    shape: Shape
    stride: Shape
    dtype: str
    storage: str
    """Name of the record that holds its bytes."""
    storage_elements: int


class _Inert:
    """Stands in for whatever a value's pickle names: it can be made, called and filled, and does nothing."""

    def __new__(cls, *_arguments: Any, **_named: Any) -> "_Inert":
        return super().__new__(cls)

    def __init__(self, *_arguments: Any, **_named: Any) -> None:
        """Take anything."""

    def __call__(self, *_arguments: Any, **_named: Any) -> "_Inert":
        return self

    def __setstate__(self, state: Any) -> None:
        """Forget it."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Forget it."""

    def append(self, value: Any) -> None:
        """Forget it."""

    def extend(self, values: Any) -> None:
        """Forget it."""


class _Unpickler(pickle.Unpickler):
    """Builds plain values and descriptions of tensors; nothing is imported, nothing but this module's code called."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.tensors: list[Stored] = []
        self.foreign: set[str] = set()

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._tensor
        if (module, name) == ("torch._utils", "_rebuild_tensor_v3"):
            return self._tensor_of_type
        if (module, name) in (("torch._utils", "_rebuild_parameter"), ("torch.serialization", "_get_layout")):
            return lambda value, *_: value
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if (module, name) == ("torch", "Size"):
            return tuple
        if module in ("torch", "torch.storage") and (name in STORAGES or name == "UntypedStorage"):
            return name
        if module == "torch" and name.isidentifier() and name[0].islower():
            return name  # a dtype
        self.foreign.add(f"{module}.{name}")
        return _Inert

    def persistent_load(self, reference: Any) -> Any:
        return reference

    def _tensor(self, reference: Any, _offset: int, shape: Any, stride: Any, *_: Any) -> Stored:
        return self._described(reference, shape, stride, STORAGES.get(str(reference[1]), ""))

    def _tensor_of_type(
        self, reference: Any, _offset: int, shape: Any, stride: Any, _grad: Any, _hooks: Any, dtype: Any, *_: Any
    ) -> Stored:
        return self._described(reference, shape, stride, str(dtype))

    def _described(self, reference: Any, shape: Any, stride: Any, dtype: str) -> Stored:
        _, _, key, _, elements = reference
        tensor = Stored(
            shape=tuple(map(int, shape)),
            stride=tuple(map(int, stride)),
            dtype=dtype,
            storage=f"data/{key}",
            storage_elements=int(elements),
        )
        self.tensors.append(tensor)
        return tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What the pickle of an archive holds."""

    value: Any
    """The value itself, tensors as ``Stored``."""
    tensors: tuple[Stored, ...]
    foreign: tuple[str, ...]
    """Names of whatever is neither a plain value nor a tensor; it was not made."""


def read_content(archive: Archive, packed: zipfile.ZipFile) -> Content:
    """Return what an archive holds; raise ``BrokenError`` where its pickle is damaged."""
    entry = archive.record("data.pkl")
    if entry is None or entry.file_size > MAX_PICKLE_BYTES:
        raise BrokenError("the archive has no data.pkl that could be read")
    try:
        data = packed.read(entry) if archive.checked else _unchecked(packed, entry)
        check_memo(data)
        unpickler = _Unpickler(data)
        value = unpickler.load()
    except (*BROKEN, *DAMAGES) as error:
        raise BrokenError(f"data.pkl is no whole pickle ({str(error) or type(error).__name__})") from error
    return Content(value=value, tensors=tuple(unpickler.tensors), foreign=tuple(sorted(unpickler.foreign)))


def _unchecked(packed: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    with packed.open(entry) as record:
        record._expected_crc = None  # type: ignore[attr-defined]  # torch.save was told to write none
        return record.read()


def names_of(content: Content, record: str) -> list[str]:
    """Return the names, joined by dots, of the tensors whose bytes are in a record: ``model.0.weight``."""
    found: list[str] = []
    waiting: list[tuple[str, Any]] = [("", content.value)]
    while waiting and len(found) < MOST_NAMES:
        name, value = waiting.pop()
        if isinstance(value, Stored) and value.storage == record:
            found.append(name.lstrip("."))
        elif isinstance(value, dict):
            waiting += [(f"{name}.{key}", each) for key, each in reversed(value.items())]
        elif isinstance(value, list | tuple) and not isinstance(value, Stored):
            waiting += [(f"{name}.{index}", each) for index, each in reversed(list(enumerate(value)))]
    return found
