"""One file of training output: what its lines say, message by message and process by process."""

import re
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from distdiag.importers._text import (
    detail,
    devices,
    dumps,
    exceptions,
    fragments,
    launchers,
    mpi,
    nccl,
    stores,
    torchrun,
    watchdog,
)
from distdiag.importers._text.facts import Role, Said, What
from distdiag.importers._text.kinds import MAX_JOINED, Block, BlockFamily, Family
from distdiag.importers._text.lines import raw_lines
from distdiag.importers._text.normalise import Bar, Heads, Line, bars_in, clean, normalise
from distdiag.importers._text.times import Stamp

FAMILIES: tuple[Family, ...] = (
    *watchdog.FAMILIES,
    *detail.FAMILIES,
    *stores.FAMILIES,
    *exceptions.FAMILIES,
    *torchrun.FAMILIES,
    *mpi.FAMILIES,
    *launchers.FAMILIES,
    *nccl.FAMILIES,
    *devices.FAMILIES,
)
"""Kinds of single lines."""
BLOCKS: tuple[BlockFamily, ...] = (
    *exceptions.BLOCKS,
    *dumps.BLOCKS,
    *watchdog.BLOCKS,
    *detail.BLOCKS,
    *mpi.BLOCKS,
    *torchrun.BLOCKS,
    *nccl.BLOCKS,
    *fragments.BLOCKS,
)
"""Kinds of messages of several lines."""
_NEEDLES = sorted(
    {needle for family in FAMILIES for needle in family.needles}
    | {needle for block in BLOCKS for needle in block.needles}
)
_LOGGERS = ("ProcessGroupNCCL", "ProcessGroupGloo", "ProcessGroupWrapper")
"""Whose lines may be broken within the words that tell their kind."""


def _any_of(words: Collection[str]) -> str:
    """Return an expression that finds any of some words; what they begin with alike is looked for once."""
    if "" in words:
        return ""
    rests: dict[str, list[str]] = {}
    for word in words:
        rests.setdefault(word[0], []).append(word[1:])
    either = [re.escape(first) + _any_of(rest) for first, rest in rests.items()]
    return either[0] if len(either) == 1 else f"(?:{'|'.join(either)})"


INTERESTING = re.compile(_any_of((*_LOGGERS, *_NEEDLES)).encode())
"""Lines without any of these words say nothing that is understood."""
MAX_SAID = 100_000
"""Things said in one file that are kept: enough for a watchdog's lines of ten thousand ranks."""
MAX_OPEN = 4096
"""Processes of which a message of several lines may be open at once."""
MOST_JOINED = max(family.lines for family in FAMILIES)
RECENT = 16
"""Lines looked back for the last moment that was written."""
MAX_HEARD = 1 << 17
"""Ranks whose lines are noted though they say nothing that is understood."""
_RANK = re.compile(rb"\[rank(\d{1,6})\]")
_SIZE = re.compile(
    rb"(?:using world size: |\bworld_size ?[=:] ?|\bMEMBER: \d+/|\bNum processes: )(\d{1,6})\b", re.IGNORECASE
)
_TELLS_SIZE = (b"orld", b"ORLD", b"MEMBER: ", b"Num processes: ")
Speaker = tuple[str, int | None, int | None]
"""Lines with the same prefixes are one process's."""
_ENDINGS = {family.name: re.compile(family.ending) for family in FAMILIES if family.ending}


@dataclass(slots=True, kw_only=True)
class Transcript:
    """What a file says."""

    path: Path
    said: list[Said] = field(default_factory=list)
    ranks: dict[tuple[str, int | None], set[int]] = field(default_factory=dict)
    """Ranks that lines with the same prefix named."""
    bar: Bar | None = None
    """The last progress bar that was drawn."""
    lines: int = 0
    ordinary: Stamp | None = None
    """The last moment of a line that is not understood: somebody went on with something."""
    heard: set[int] = field(default_factory=set)
    """Ranks that any line names as the one that says it."""
    size: int = 0
    """Number of ranks of the job as ordinary lines tell it, 0 where none does; or that of some group."""
    overflow: int = 0
    """Things said that were too many to keep."""


@dataclass(slots=True)
class _Open:
    block: Block
    line: Line
    stamp: Stamp | None


@dataclass(slots=True)
class _Broken:
    """A message whose line ends before the message does."""

    line: Line
    joined: int


def transcribe(path: Path, number: int) -> Transcript:
    """Return what a file says; ``number`` tells it from the other files."""
    return _Reader(path, number).read()


class _Reader:
    def __init__(self, path: Path, number: int) -> None:
        self._transcript = Transcript(path=path)
        self._number = number
        self._blocks: dict[Speaker, _Open] = {}
        self._broken: _Broken | None = None
        self._heads = Heads()
        self._skipped: deque[bytes] = deque(maxlen=RECENT)
        self._stamp: Stamp | None = None
        self._stamp_skipped: Stamp | None = None
        self._logged: Speaker | None = None
        """Whose message of several lines a logger began last that does not repeat its prefix."""

    def read(self) -> Transcript:
        for raw in raw_lines(self._transcript.path):
            if self._blocks or self._broken or INTERESTING.search(raw.data):
                self._take(raw.number, clean(raw.data))
            else:
                self._skipped.append(raw.data)
            self._overhear(raw.data)
            if b"%|" in raw.data:
                for bar in bars_in(raw.number, clean(raw.data)):
                    self._transcript.bar = bar
            self._transcript.lines = raw.number
        for speaker in list(self._blocks):
            self._close(speaker)
        self._transcript.ordinary = self._last_ordinary()
        self._join(None)
        self._transcript.said.sort(key=lambda said: said.line.number)  # long messages end after others that came later
        return self._transcript

    def _overhear(self, data: bytes) -> None:
        """Note what any line tells of who there is."""
        if b"[rank" in data:
            self._transcript.heard.update(rank for found in _RANK.findall(data) if (rank := int(found)) < MAX_HEARD)
        if any(word in data for word in _TELLS_SIZE) and (found := _SIZE.search(data)):
            self._transcript.size = max(self._transcript.size, int(found[1]))

    def _take(self, number: int, text: str) -> None:
        for line in normalise(number, text, self._heads):
            self._stamp = line.stamp or self._recent_stamp()
            if line.rank is not None and not line.headed:
                self._transcript.ranks.setdefault((line.label, line.task), set()).add(line.rank)
            if not self._join(line):
                self._single(line)
            self._several(line)

    def _last_ordinary(self) -> Stamp | None:
        stamps = [line.stamp for raw in self._skipped for line in normalise(0, clean(raw)) if line.stamp is not None]
        return stamps[-1] if stamps else self._stamp_skipped

    def _recent_stamp(self) -> Stamp | None:
        """Return the last moment that was written before a line that has none."""
        while self._skipped:
            for line in normalise(0, clean(self._skipped.pop())):
                if line.stamp is not None:
                    self._skipped.clear()
                    self._stamp_skipped = line.stamp
                    return line.stamp
        return self._stamp

    def _single(self, line: Line, joined: int = 0) -> None:
        """Read a message, or keep it until the rest of it has come."""
        families = [family for family in FAMILIES if any(needle in line.text for needle in family.needles)]
        cut = [family for family in families if family.name in _ENDINGS and not _ENDINGS[family.name].search(line.text)]
        if (cut or (not families and line.source is not None)) and joined < max(
            (f.lines for f in cut), default=MAX_JOINED
        ):
            # A terminal may break a line anywhere, within the words that tell its kind too.
            self._broken = _Broken(line, joined)
            return
        for family in families:
            self._add(family.parse(line), family.role, line, self._stamp)

    def _join(self, line: Line | None) -> bool:
        """Join a line to the message that broke off before it; return whether it belonged to that."""
        broken, self._broken = self._broken, None
        if broken is None:
            return False
        if line is None or not _may_follow(line, broken.line):
            self._single(broken.line, joined=MOST_JOINED)
            return False
        tight, spaced = broken.line.text + line.text, f"{broken.line.text} {line.text.strip()}"
        self._single(
            replace(broken.line, text=spaced if _is_whole(spaced) and not _is_whole(tight) else tight),
            broken.joined + 1,
        )
        return True

    def _several(self, line: Line) -> None:
        speaker = _speaker(line)
        if line.source is None and self._feed(speaker, line):
            return
        for family in BLOCKS:
            if any(needle in line.text for needle in family.needles):
                block = family.open(line)
                if block is not None:
                    self._close(speaker)
                    self._blocks[speaker] = _Open(block, line, self._stamp)
                    self._logged = speaker if line.source is not None or line.logged else None
                    if len(self._blocks) > MAX_OPEN:
                        self._close(next(iter(self._blocks)))
                    return

    def _feed(self, speaker: Speaker, line: Line) -> bool:
        """Give a line to the open message of its process; return whether it belonged to that."""
        opened = self._blocks.get(speaker)
        if opened is not None:
            if opened.block.feed(line):
                return True
            self._close(speaker)
        # A number may be no task's but part of a list; further lines of a C++ message have no prefix at all.
        outer = (line.label, line.rank, None) if line.task is not None else self._logged if _is_bare(line) else speaker
        opened = self._blocks.get(outer) if outer is not None and outer != speaker else None
        return opened is not None and opened.block.feed(line)

    def _close(self, speaker: Speaker) -> None:
        opened = self._blocks.pop(speaker, None)
        if opened is not None:
            for what, role in opened.block.close():
                self._add((what,), role, opened.line, opened.stamp)

    def _add(self, whats: Iterable[What], role: Role, line: Line, lent: Stamp | None) -> None:
        """Keep what a line says; ``lent`` is the last moment that was written before it, however late it is read."""
        stamped = replace(line, stamp=line.stamp or lent, borrowed=line.stamp is None and lent is not None)
        for what in whats:
            if len(self._transcript.said) >= MAX_SAID:
                self._transcript.overflow += 1
            else:
                self._transcript.said.append(Said(what=what, role=role, line=stamped, file=self._number))


def _speaker(line: Line) -> Speaker:
    return line.label, line.rank, line.task


def _is_whole(text: str) -> bool:
    """Return whether a text is all of a message of some kind."""
    kinds = [family.name for family in FAMILIES if any(needle in text for needle in family.needles)]
    return any(name in _ENDINGS and _ENDINGS[name].search(text) for name in kinds)


def _is_bare(line: Line) -> bool:
    return not line.label and line.rank is None and line.source is None and line.task is None


def _may_follow(line: Line, broken: Line) -> bool:
    """Return whether a line may be the rest of one that broke off: it has no prefix, or the same."""
    return _is_bare(line) or (_speaker(line) == _speaker(broken) and line.source is None)
