"""Files shared out to processes: what takes long to decode is decoded on all processors.

Processes are forked, so they begin at once and know what to do; each takes a share of the files when it has done the
one before, and hands over all it made at its end. This process takes shares, too, once it has nothing better to do.
What a process that died had taken is done again here.
"""

import contextlib
import gc
import os
import pickle
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Generic, TypeVar

LEAST_BYTES = 2 << 20
"""Less is decoded about as fast as another process begins and hands over what it made."""
MOST_PROCESSES = 16
SHARES = 256
"""The number of a share is one byte; all of them fit into a pipe."""

Result = TypeVar("Result")


class Shared(Generic[Result]):
    """What a function returns for each of many files; other processes begin with them at once."""

    def __init__(self, read: Callable[[Path], Result], files: Sequence[Path]) -> None:
        """Begin, where there are processors and enough to do. ``read`` raises nothing, and its results are pickled."""
        self._read = read
        self._files = files
        self._workers: dict[int, int] = {}
        """Where the results of each process are read from, by its number."""
        self._shares: int | None = None
        if _processors() > 1 and _can_fork() and sum(map(_size, files)) >= LEAST_BYTES:
            self._begin(min(MOST_PROCESSES, _processors()) - 1)
            weakref.finalize(self, _end, self._workers)

    def results(self) -> Iterator[Result]:
        """Yield the results in the order of the files."""
        made: dict[int, Result] = {}
        if self._shares is not None:
            made |= _of_shares(self._shares, self._read, self._files)
            os.close(self._shares)
            self._shares = None
        while self._workers:
            made |= _handed_over(*self._workers.popitem())
        for place, file in enumerate(self._files):
            yield made.pop(place) if place in made else self._read(file)

    def _begin(self, processes: int) -> None:
        self._shares, filling = os.pipe()
        os.write(filling, bytes(range(min(SHARES, len(self._files)))))
        os.close(filling)
        for _ in range(processes):
            reading, writing = os.pipe()
            with warnings.catch_warnings():
                # The other threads that there may be are those of libraries of arithmetic, and they sleep.
                warnings.simplefilter("ignore", DeprecationWarning)
                process = os.fork()
            if not process:
                _work(self._shares, writing, self._read, self._files)
            os.close(writing)
            self._workers[process] = reading


def _work(shares: int, writing: int, read: Callable[[Path], Result], files: Sequence[Path]) -> None:
    """Take shares until there are none, hand over what was made of them, and end this process."""
    try:
        gc.disable()
        made = _of_shares(shares, read, files)
        with open(writing, "wb") as handed:
            pickle.dump(made, handed, pickle.HIGHEST_PROTOCOL)
    finally:
        os._exit(0)  # whatever is to be done at the end of a process is the other's to do


def _of_shares(shares: int, read: Callable[[Path], Result], files: Sequence[Path]) -> dict[int, Result]:
    """Return what is made of the shares that nobody has taken yet, by the place of the file."""
    made: dict[int, Result] = {}
    while share := os.read(shares, 1):
        for place in range(share[0], len(files), SHARES):
            made[place] = read(files[place])
    return made


def _handed_over(process: int, reading: int) -> dict[int, Result]:
    """Return what a process made; nothing where it died over it."""
    made: dict[int, Result] = {}
    with open(reading, "rb") as handed, contextlib.suppress(EOFError, pickle.UnpicklingError):
        made = pickle.load(handed)
    os.waitpid(process, 0)
    return made


def _end(workers: dict[int, int]) -> None:
    """End the processes whose results nobody wants any more."""
    while workers:
        process, reading = workers.popitem()
        os.close(reading)
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _can_fork() -> bool:
    """Return whether this process can be copied: a lock that another thread holds would never be given back."""
    return hasattr(os, "fork") and threading.active_count() == 1


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
