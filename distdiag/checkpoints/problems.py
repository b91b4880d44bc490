"""What verification returns: problems that name file, tensor and bytes, and the facts beside them."""

from collections.abc import Iterable
from dataclasses import dataclass

from distdiag.checkpoints.layout import Chunk, Item, box

INCOMPLETE = "checkpoint-incomplete"
"""Something that the checkpoint promises is not there."""
CORRUPT = "checkpoint-corrupt"
"""Something is there, and it is not what was saved."""
WHOLE = "whole"
CODES = {INCOMPLETE: "DD701", CORRUPT: "DD702"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One injury of a checkpoint."""

    finding: str
    kind: str
    """``missing-file``, ``truncated``, ``checksum``, ``hash`` …"""
    summary: str
    """A sentence that begins with the file, the tensor and the bytes."""
    file: str | None = None
    tensor: str | None = None
    start: int | None = None
    """First byte of the file that it is about."""
    end: int | None = None
    """First byte after that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a checkpoint is, as far as it could be read."""

    kind: str
    """``sharded`` (torch.distributed.checkpoint), ``torch``, ``safetensors`` or ``per-rank`` files."""
    files: int = 0
    bytes: int = 0
    tensors: int = 0
    chunks: int = 0
    values: int = 0
    """Items that are no tensors."""
    elements: int = 0
    world_size: int | None = None
    """Ranks that saved it."""
    step: int | None = None
    version: str | None = None
    save_id: str | None = None
    hashed: str = "none"
    """For how many files the save's own hashes are known: ``all``, ``some`` or ``none``."""
    contents_read: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Whether a checkpoint is whole, and if not, why."""

    directory: str
    problems: tuple[Problem, ...]
    facts: Facts
    loads: str = ""
    """At which data-parallel sizes it can be loaded."""
    notes: tuple[str, ...] = ()
    """Observations that are no damage."""
    unknowable: tuple[str, ...] = ()
    """Injuries that nothing here could show."""
    action: tuple[str, ...] = ()

    @property
    def outcome(self) -> str:
        """Return ``whole``, or the name of the gravest problem's finding: what is gone outranks what is wrong."""
        findings = {problem.finding for problem in self.problems}
        return next((name for name in (INCOMPLETE, CORRUPT) if name in findings), WHOLE)


def what(name: str, chunk: Chunk | None) -> str:
    """Name a tensor's chunk or a value: ``model.weight[0:4, 0:7]``."""
    return name if chunk is None else f"{name}{box(chunk.offsets, chunk.sizes)}"


def place(item: Item) -> str:
    """Name a range of bytes: ``__0_0.distcp, bytes 0-1640``."""
    return f"{item.file}, {span(item.offset, item.end)}"


def span(start: int, end: int) -> str:
    """Name bytes by their first and last."""
    return f"bytes {start}-{end - 1}" if end > start + 1 else f"byte {start}"


def and_more(names: Iterable[str], noun: str) -> str:
    """Name the first and count the others: ``a, the first of 3 items``."""
    all_names = list(names)
    return all_names[0] if len(all_names) == 1 else f"{all_names[0]}, the first of {len(all_names)} {noun}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What loading a checkpoint at one size of the world brought."""

    world_size: int
    seconds: float = 0.0
    peak_bytes: int = 0
    """Largest resident memory of a rank."""
    grown_bytes: int = 0
    """How much of it came after the libraries were loaded."""
    tensors: int = 0
    chunks: int = 0
    """Chunks whose values were compared with their checksums."""
    basis: str = "file"
    """Whose checksums: those that the ``save`` recorded, or those in the ``file`` itself."""
    left_out: tuple[str, ...] = ()
    """Values that were not loaded, because reading them runs what they name."""
    error: str = ""
