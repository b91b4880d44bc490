"""Builds as setuptools does, and packs the wheel as tightly as its format allows: a fiftieth smaller.

Where the compressor for it is not to be had, the wheel is left as setuptools packs it.
"""

import importlib.util
import zipfile
from pathlib import Path
from typing import Any
from unittest import mock

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]
LEVEL = 12
"""The highest; zlib ends at 9, and packs less tightly there."""


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build a wheel and return its name."""
    name = build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
    if importlib.util.find_spec("deflate") is not None:
        _pack_again(Path(wheel_directory, name))
    return name


def _pack_again(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        files = [(info, packed.read(info)) for info in packed.infolist()]
    # A zipfile takes nothing that is compressed already; only what it compresses with can be exchanged.
    with mock.patch("zlib.compressobj", _Compressor), zipfile.ZipFile(wheel, "w") as packed:
        for info, content in files:
            packed.writestr(info, content)


class _Compressor:
    """Stands for one of zlib."""

    def __init__(self, *_settings: int) -> None:
        self._parts: list[bytes] = []

    def compress(self, part: bytes) -> bytes:
        self._parts.append(part)
        return b""

    def flush(self) -> bytes:
        import deflate

        return bytes(deflate.deflate_compress(b"".join(self._parts), LEVEL))
