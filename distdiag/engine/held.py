"""Logs that are no files until a query asks for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from distdiag.engine import Engine
from distdiag.engine.sql import Kinds


class HeldEngine(Engine):
    """Reads logs that are held in memory, by the paths that they are known under; the first query writes them."""

    def __init__(self, contents: Mapping[Path, Callable[[], bytes]]) -> None:
        """Know what each log would hold."""
        super().__init__()
        self._contents = contents
        self._written: dict[Path, Path] = {}

    def _query(self, files: Sequence[Path], kind: Kinds, only: Collection[str] | None = None) -> str:
        return super()._query(self._files(files), kind, only)

    def _lines(self, files: Sequence[Path], condition: str) -> Iterator[tuple[int, bytes | None]]:
        return super()._lines(self._files(files), condition)

    def _files(self, files: Sequence[Path]) -> list[Path]:
        for file in files:
            if file not in self._written:
                self._written[file] = self.spool(file.name, self._contents[file]())
        return [self._written[file] for file in files]
