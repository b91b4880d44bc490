"""What processes recorded, read back for tests; and recording the test's own process.

with recording(tmp_path) as made, pretended_world():
    torch.distributed.barrier()
assert [issued.op for issued in made.log.issued()] == ["barrier"]
"""

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

import distdiag
from distdiag import events
from distdiag import recording as own_recording
from distdiag.journal import read_lines, segments_of

RANK, WORLD_SIZE = 1, 4
"""Who a process pretends to be."""

Kind = TypeVar("Kind", bound=events.Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A call with what its number and its signature refer to."""

    call: events.Call
    signature: events.Signature
    frames: tuple[str, ...]
    done: events.Done | None

    @property
    def op(self) -> str:
        """Return the operator's name."""
        return self.signature.op

    @property
    def site(self) -> str:
        """Return the innermost user frame."""
        return self.frames[-1] if self.frames else ""

    @property
    def seconds(self) -> float:
        """Return how long the call took; it must have ended."""
        assert self.done is not None, f"{self.op} has no end"
        return (self.done.end_ns - self.call.start_ns) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLog:
    """The records of one process."""

    records: tuple[events.Event, ...]

    def of(self, kind: type[Kind]) -> list[Kind]:
        """Return the records of one kind, in order."""
        return [record for record in self.records if isinstance(record, kind)]

    def issued(self, *ops: str) -> list[Issued]:
        """Return the calls in order, those of some operators only if any are named."""
        signatures = {each.signature: each for each in self.of(events.Signature)}
        ends = {each.call: each for each in self.of(events.Done)}
        paths = self.paths()
        issued = []
        for call in self.of(events.Call):
            signature = signatures[call.signature]
            if not ops or signature.op in ops:
                frames = paths.get(signature.path, ())
                issued.append(Issued(call=call, signature=signature, frames=frames, done=ends.get(call.call)))
        return issued

    def the_call(self, *ops: str) -> Issued:
        """Return the only call, or the only one of some operators."""
        (issued,) = self.issued(*ops)
        return issued

    def paths(self) -> dict[int, tuple[str, ...]]:
        """Return the user frames of each path number."""
        return {each.path: tuple(each.frames) for each in self.of(events.Path)}

    def phases(self, name: str) -> list[events.Phase]:
        """Return the begins and ends of the phases of a name."""
        return [phase for phase in self.of(events.Phase) if phase.phase == name]

    def faults(self, *kinds: str) -> list[events.Fault]:
        """Return the fault records of some kinds."""
        return [fault for fault in self.of(events.Fault) if fault.fault in kinds]


def read_logs(directory: Path) -> dict[str, RankLog]:
    """Return the logs of a directory by stem."""
    return {
        f"{log.stem}.attempt{log.attempt}" if log.attempt else log.stem: RankLog(
            records=tuple(events.decode(line) for file in log.files for line in read_lines(file))
        )
        for log in (segments_of(directory) if directory.is_dir() else [])
    }


class Recording:
    """What the test's own process records between ``install`` and ``uninstall``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def log(self) -> RankLog:
        """Return what has been written so far."""
        (log,) = read_logs(self.directory).values()
        return log

    def the_call(self, *ops: str) -> Issued:
        """Return the only call so far, or the only one of some operators."""
        return self.log.the_call(*ops)

    @functools.cached_property
    def recorder(self) -> Any:
        """Return the recorder; only while it records."""
        installed = own_recording.installed()
        assert installed is not None
        return installed.recorder


@contextlib.contextmanager
def recording(directory: Path, **arguments: Any) -> Iterator[Recording]:
    """Record the test's own process."""
    distdiag.install(directory, **arguments)
    try:
        yield Recording(directory)
    finally:
        distdiag.uninstall()


@contextlib.contextmanager
def lonely_world() -> Iterator[None]:
    """Make the test's own process the only rank of a gloo group."""
    distributed: Any = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


@contextlib.contextmanager
def pretended_world(rank: int = RANK, world_size: int = WORLD_SIZE) -> Iterator[None]:
    """Make the test's own process a rank of a group whose other members are pretended.

    Nothing is ever sent, and no call ever ends.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed: Any = torch.distributed
    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def floats(*shape: int) -> torch.Tensor:
    """Return a small tensor."""
    return torch.ones(shape)
