"""Reads pickles of plain values, and nothing else, from files that nobody vouches for.

A pickle is a program. Before it is run, every instruction is checked against the few that build dictionaries, lists,
texts and numbers, so nothing can be imported or called. The checks also bound the memory: a length that goes
beyond the file, a place in the unpickler's memo far beyond its end, or millions of empty lists end the reading.
"""

import io
import pickle
import re
from typing import Any

MAX_BYTES = 64 << 20
"""Larger than the dump of a ring of 2,000 calls with deep stacks by a factor of ten."""
MAX_CONTAINERS = 4_000_000
"""An empty list is one byte in a pickle and sixty in memory."""
READ_AHEAD_BYTES = 1 << 17
MAX_LINE_BYTES = 1 << 20
"""Longest text in one of the old pickles that end each value with a newline."""

_ONE = rb"[\])}(N0\x88\x89\x94\x85\x86\x87tesuadl]"
_MEMO = rb"r..[\x00-\x3f]\x00"  # places up to four million: the unpickler makes room for all places below
_OLD = rb"[pg]\d{1,7}\n|I-?\d{1,20}\n|L-?\d{1,30}L?\n|F[^\n]{1,40}\n|V[^\n]{0,1048576}\n"
_LONG = rb"\x8a(?:\x08........|\x05.....|\x06......|\x07.......|\x04....|\x09.........|\x00|\x01.|\x02..|\x03...)"
LONGEST_NAMED = 48
"""Texts up to this length are gone over by the expression: most are no longer, and each step of ours costs more."""
_TEXT = rb"\x8c(?:%b)|X(?:%b)" % (
    b"|".join(re.escape(bytes([size])) + rb".{%d}" % size for size in range(LONGEST_NAMED)),
    b"|".join(re.escape(bytes([size, 0, 0, 0])) + rb".{%d}" % size for size in range(LONGEST_NAMED)),
)
_INSTRUCTIONS = re.compile(
    # The most frequent first: this decides the speed.
    rb"(?:%b*+(?:j....|h.|%b|K.|M..|q.|J....|%b|G........|\x95........|\x80[\x00-\x05]|%b|%b))*+%b*+"
    % (_ONE, _MEMO, _LONG, _TEXT, _OLD, _ONE),
    re.DOTALL,
)
_CONTAINERS = (b"]", b"}", b")", b"\x85", b"\x86", b"\x87")
_STOP = ord(".")
_TEXT_LENGTHS = {ord("X"): 4, 0x8C: 1, 0x8D: 8, ord("U"): 1, ord("T"): 4}
"""Instructions that hold a text, by the bytes that its length takes."""


class RefusedError(ValueError):
    """Not a pickle of plain values, or not a whole one."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        raise RefusedError(f"it names {module}.{name}")


def read_pickle(data: bytes) -> Any:
    """Return the value that a pickle holds; raise ``RefusedError`` for whatever is not a pickle of plain values."""
    _check(data)
    try:
        # Without a buffer it asks for every few bytes apart, which takes longer than all the rest.
        return _PlainUnpickler(io.BufferedReader(io.BytesIO(data), READ_AHEAD_BYTES)).load()
    except (
        pickle.UnpicklingError,
        AttributeError,
        EOFError,
        IndexError,
        KeyError,
        MemoryError,
        OverflowError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise RefusedError(f"it is no whole pickle ({error or type(error).__name__})") from error


def _check(data: bytes) -> None:
    if len(data) > MAX_BYTES:
        raise RefusedError(f"it has {len(data)} bytes, and at most {MAX_BYTES} are read")
    if len(data) > MAX_CONTAINERS and sum(map(data.count, _CONTAINERS)) > MAX_CONTAINERS:
        raise RefusedError(f"it holds more than {MAX_CONTAINERS} lists and dictionaries")
    at, end = 0, len(data)
    while at < end:
        found = _INSTRUCTIONS.match(data, at)
        at = found.end() if found else at
        if at >= end:
            break
        if data[at] == _STOP:
            return
        size = _TEXT_LENGTHS.get(data[at])
        if size is None:
            raise RefusedError(f"byte {at} is an instruction that no plain value needs")
        at += 1 + size + int.from_bytes(data[at + 1 : at + 1 + size], "little")
    raise RefusedError("it is cut off")
