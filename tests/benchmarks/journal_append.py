"""What one append to the journal costs: ``python tests/benchmarks/journal_append.py [DIRECTORY]``.

Appends a 150-byte record some 400,000 times, which fills 15 segments, with a thread that ticks as in a
training process (``tick``) or without (``no tick``), and prints the median over runs and the slowest appends.
"""

import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from distdiag.journal import Journal

RUNS = 5
APPENDS = 400_000
TICK_SECONDS = 0.01
"""Much more often than in a job, because this appends much faster than a job."""
LINE = (
    b'{"kind":"call","call":123456,"signature":17,"seq":1234,"step":120,"forwards":1,"backwards":1,'
    b'"phase":"backward","start_ns":123456789012345,"chain":12345}\n'
)


def fill(directory: Path, *, ticks: bool) -> tuple[float, list[int]]:
    """Return nanoseconds per append, and the slowest appends of as many more that are timed one by one."""
    journal = Journal(directory, stem="rank00000", attempt=None, header=lambda segment: LINE, max_bytes=64 << 20)
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(TICK_SECONDS):
            journal.tick()

    thread = threading.Thread(target=tick)
    if ticks:
        thread.start()
    append, clock = journal.append, time.perf_counter_ns
    start = clock()
    for _ in range(APPENDS):
        append(LINE)
    each = (clock() - start) / APPENDS
    slowest = []
    for _ in range(APPENDS):
        start = clock()
        append(LINE)
        slowest.append(clock() - start)
    ended.set()
    if ticks:
        thread.join()
    journal.close()
    return each, sorted(slowest)


def main() -> None:
    """Measure and print."""
    parent = sys.argv[1] if len(sys.argv) > 1 else None
    for ticks in (False, True):
        costs, tails = [], []
        for _ in range(RUNS):
            with tempfile.TemporaryDirectory(dir=parent) as name:
                each, slowest = fill(Path(name), ticks=ticks)
            costs.append(each)
            tails.append(slowest)
        median, p999 = (statistics.median(tail[int(len(tail) * share)] for tail in tails) for share in (0.5, 0.999))
        worst = statistics.median(tail[-1] for tail in tails)
        sys.stdout.write(
            f"{'tick' if ticks else 'no tick'}: {statistics.median(costs):.0f} ns per append of {len(LINE)} bytes; "
            f"timed one by one: median {median:.0f} ns, 99.9 % {p999 / 1e3:.1f} us, slowest {worst / 1e6:.2f} ms\n"
        )


if __name__ == "__main__":
    main()
