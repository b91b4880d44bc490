"""The journal when things happen to its process: death, signals, threads, forks."""

import gc
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from distdiag.journal import Journal
from distdiag.journal.segments import Segment
from tests.journals import call_line, header_line, open_journal, records_in

ROOT = Path(__file__).parents[2]
DIES_WHILE_APPENDING = """
import os, sys
from pathlib import Path
from tests.journals import call_line, open_journal

journal = open_journal(Path(sys.argv[1]), segment_bytes=1 << 16)
call = 0
while True:
    call += 1
    journal.append(call_line(call, padding=100))
    os.write(1, b"%d\\n" % call)
    if call % 500 == 0:
        journal.tick()
    if call == int(sys.argv[3]):
        getattr(os, sys.argv[2])(*[3][: sys.argv[2] == "_exit"])
"""


@pytest.fixture(autouse=True)
def _own_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTDIAG_RAISE", "1")


@contextmanager
def background(work: Callable[[], object]) -> Iterator[None]:
    """Repeat ``work`` on another thread meanwhile."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.0001):
            work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_sigkill_at_a_random_moment_loses_no_appended_record(tmp_path: Path) -> None:
    for attempt in range(5):
        directory = tmp_path / str(attempt)
        command = [sys.executable, "-c", DIES_WHILE_APPENDING, str(directory), "abort", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
            assert process.stdout
            process.stdout.readline()
            time.sleep(random.uniform(0, 0.1))
            process.kill()
            returned = int((b"1\n" + process.stdout.read()).split(b"\n")[-2])

        calls = records_in(directory)

        assert calls == [call_line(call, padding=100) for call in range(1, len(calls) + 1)]
        assert len(calls) in (returned, returned + 1)


@pytest.mark.parametrize("death", ["abort", "_exit"])
def test_abrupt_ends_lose_nothing(tmp_path: Path, death: str) -> None:
    command = [sys.executable, "-c", DIES_WHILE_APPENDING, str(tmp_path), death, "777"]
    subprocess.run(command, stdout=subprocess.DEVNULL, cwd=ROOT, check=False)

    assert records_in(tmp_path) == [call_line(call, padding=100) for call in range(1, 778)]


def test_append_from_within_append_neither_deadlocks_nor_interleaves(tmp_path: Path) -> None:
    def header_that_appends(segment: int) -> bytes:
        signal.raise_signal(signal.SIGUSR1)  # as if it came while a segment begins
        return header_line(segment)

    journal = open_journal(tmp_path, segment_bytes=300, header=header_that_appends)
    handled = 0

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal handled
        handled += 1
        journal.append(call_line(1000 + handled))

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        for call in range(100):
            journal.append(call_line(call, padding=50))
    finally:
        signal.signal(signal.SIGUSR1, before)
    journal.close()

    wanted = [call_line(call, padding=50) for call in range(100)]
    wanted += [call_line(1000 + number) for number in range(1, handled + 1)]
    assert handled > 20
    assert sorted(records_in(tmp_path)) == sorted(wanted)


def test_signals_and_garbage_collections_append_at_any_moment(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, segment_bytes=2000)
    numbers = itertools.count(1_000_000)  # taken in one step: garbage may be collected in any thread

    def interrupt() -> None:
        journal.append(call_line(next(numbers)))

    def handler(number: int, frame: FrameType | None) -> None:
        interrupt()

    def collected(phase: str, facts: dict[str, int]) -> None:
        interrupt()

    before, threshold = signal.signal(signal.SIGALRM, handler), gc.get_threshold()
    gc.callbacks.append(collected)
    gc.set_threshold(7, 1000, 1000)
    signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
    try:
        for call in range(5000):
            journal.append(call_line(call, padding=50))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.callbacks.remove(collected)
        gc.set_threshold(*threshold)
    journal.close()

    records, interruptions = records_in(tmp_path), next(numbers) - 1_000_000
    assert interruptions > 100
    assert [line for line in records if b"xx" in line] == [call_line(call, padding=50) for call in range(5000)]
    assert len(records) == 5000 + interruptions


def test_threads_append_whole_lines_in_their_own_order(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, segment_bytes=2000)

    def work(thread: int) -> None:
        for call in range(1500):
            journal.append(call_line(10_000 * thread + call))

    with background(journal.tick), ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    journal.close()

    numbers = [int(line.split(b":")[2].split(b",")[0]) for line in records_in(tmp_path)]
    assert len(numbers) == 6000
    for thread in range(4):
        own = [number for number in numbers if number // 10_000 == thread]
        assert own == [10_000 * thread + call for call in range(1500)]


def test_forked_child_cannot_write_or_end_its_parents_log(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append(call_line(1))

    child = os.fork()
    if child == 0:
        try:
            for call in range(1000, 1200):
                journal.append(call_line(call))
            journal.tick()
            journal.rename("rank00009")
            journal.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    journal.append(call_line(2))
    journal.close()

    assert records_in(tmp_path) == [call_line(1), call_line(2)]


def test_line_of_a_thread_that_comes_while_its_segment_is_sealed_stays(tmp_path: Path) -> None:
    segment = Segment(tmp_path / "rank00000.jsonl", 4096)
    segment.map.write(call_line(1))
    with segment.path.open("r+b") as late:  # behind the end that this thread knows
        late.seek(len(call_line(1)))
        late.write(call_line(2))

    segment.seal()

    assert segment.path.read_bytes() == call_line(1) + call_line(2)


def test_close_while_other_threads_append_and_tick_leaves_a_readable_log(tmp_path: Path) -> None:
    for number in range(20):
        directory = tmp_path / str(number)
        journal = open_journal(directory, segment_bytes=500)
        appended = 0

        def append(journal: Journal = journal) -> None:
            nonlocal appended
            appended += 1
            journal.append(call_line(appended))

        with background(append), background(journal.tick):
            while appended < 50:
                time.sleep(0.0005)
            journal.close()

        records = records_in(directory)
        assert records == [call_line(call) for call in range(1, len(records) + 1)]
        assert len(records) >= 50


def test_log_directory_removed_under_the_process_does_no_harm(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "logs", segment_bytes=300)
    journal.append(call_line(1))
    for path in (tmp_path / "logs").iterdir():
        path.unlink()
    (tmp_path / "logs").rmdir()

    for call in range(20):
        journal.append(call_line(call, padding=50))
        journal.tick()
    journal.close()

    assert not list(tmp_path.iterdir())
