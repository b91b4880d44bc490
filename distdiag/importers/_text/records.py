"""The records of one rank in the making: numbers, interned paths and signatures."""

import math
import zlib
from collections.abc import Sequence

from distdiag import events
from distdiag.importers._text.tales import Act
from distdiag.stackframes import user_part

AGREES_ON_ROOT = frozenset({"broadcast", "reduce", "gather", "scatter"})
LAST_NUMBER = 1 << 40
MOST_ELEMENTS = 1 << 50
"""Greater numbers of calls and sizes of tensors are damage."""
SIZES_DIFFER = frozenset({"all_gather", "gather", "scatter", "all_to_all", "all_to_all_single", "barrier"})
"""Operations whose input may rightly have another size on each rank, or has none."""


class RankRecords:
    """Collects the records of one rank."""

    def __init__(self, header: events.Header) -> None:
        self.header = header
        self.records: list[events.Event] = []
        self._paths: dict[tuple[str, ...], int] = {}
        self._signatures: dict[str, int] = {}
        self._calls = 0
        self._phases = 0

    @property
    def log(self) -> list[events.Event]:
        """Return the header and everything after it."""
        return [self.header, *self.records]

    def path(self, frames: Sequence[str]) -> int:
        """Return the number of the user's part of some frames, outermost first."""
        kept = user_part(frames) or tuple(frames)
        if kept not in self._paths:
            self._paths[kept] = len(self._paths) + 1
            self.records.append(events.Path(path=self._paths[kept], frames=list(kept)))
        return self._paths[kept]

    def call(self, act: Act) -> None:
        """Issue the call of an act, and end it where the act has an end."""
        signature = events.Signature(
            signature=0,
            group=act.group,
            op=act.op,
            p2p=act.p2p,
            dtype=act.dtype,
            shapes=[list(shape) for shape in act.shapes if math.prod(shape) <= MOST_ELEMENTS],
            root=act.root,
            peer=act.peer,
            reduce_op=act.reduce_op,
            module=act.module,
            path=self.path(act.frames) if act.frames else 0,
            thread=act.thread,
            agree=_digest(act),
        )
        self._calls += 1
        self.records.append(
            events.Call(
                call=self._calls,
                signature=self._interned(signature),
                seq=events.NUMBER_UNKNOWN if act.seq is None or act.seq > LAST_NUMBER else act.seq,
                step=0,
                start_ns=act.start_ns,
            )
        )
        if act.end_ns is not None:
            failed = act.error is not None
            self.records.append(
                events.Done(call=self._calls, end_ns=act.end_ns, clock="wait", failed=failed, error=act.error)
            )

    def phase(
        self, phase: str, *, begin_ns: int, end_ns: int | None, came: int | None, frames: Sequence[str] = ()
    ) -> None:
        """Begin the making of a group, and let it fail where an end is given."""
        self._phases += 1
        number, path = self._phases, self.path(frames) if frames else None
        self.records.append(
            events.Phase(phase=phase, edge="begin", number=number, time_ns=begin_ns, path=path, came=came)
        )
        if end_ns is not None:
            self.records.append(
                events.Phase(phase=phase, edge="end", number=number, time_ns=end_ns, path=path, failed=True)
            )

    def _interned(self, signature: events.Signature) -> int:
        key = repr(signature)
        if key not in self._signatures:
            self._signatures[key] = number = len(self._signatures) + 1
            signature.signature = number
            self.records.append(signature)
        return self._signatures[key]


def _digest(act: Act) -> int:
    """Return what has to be equal on all members."""
    sizes, dtype = ((), None) if act.op in SIZES_DIFFER else (act.shapes, act.dtype)
    root = act.root if act.op in AGREES_ON_ROOT else None
    return zlib.crc32(repr((act.op, dtype, sizes, root)).encode())
