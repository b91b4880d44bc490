"""The journal and the disk: reserving, running out, lines that do not fit."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distdiag import events
from distdiag.journal import Journal
from distdiag.journal.segments import LOSS_BYTES
from tests.journals import call_line, header_line, lines_in, open_journal, records_in


@pytest.fixture(autouse=True)
def _own_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTDIAG_RAISE", "1")


@contextmanager
def no_space_for_files_above(size_bytes: int) -> Iterator[None]:
    """Let the kernel refuse to reserve larger files, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_line_longer_than_a_segment_gets_one_of_its_own(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, segment_bytes=300)
    lines = [call_line(1), call_line(2, padding=5000), call_line(3), call_line(4)]

    for line in lines:
        journal.append(line)
    journal.close()

    assert records_in(tmp_path) == lines


def test_line_longer_than_the_cap_is_dropped_and_said_to_be(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, max_bytes=8192)

    journal.append(call_line(1))
    journal.append(call_line(2, padding=10_000))
    journal.append(call_line(3))
    journal.tick()
    journal.close()

    first, second, dropped = records_in(tmp_path)
    record = events.decode(dropped)
    assert (first, second) == (call_line(1), call_line(3))
    assert isinstance(record, events.Dropped)
    assert (record.reason, record.records, record.calls, record.segment) == ("cap", 1, [2, 2], None)


def test_full_disk_drops_and_counts_until_there_is_space(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, segment_bytes=4096)
    journal.append(call_line(0, padding=4000))

    with no_space_for_files_above(1000):
        journal.append(call_line(1, padding=200) + call_line(2, padding=200))
        journal.tick()
        journal.append(call_line(3, padding=200))
    journal.tick()
    journal.append(call_line(4, padding=200))
    journal.close()

    first, dropped, last = records_in(tmp_path)
    record = events.decode(dropped)
    assert (first, last) == (call_line(0, padding=4000), call_line(4, padding=200))
    assert isinstance(record, events.Dropped)
    assert (record.reason, record.records, record.calls) == ("no-space", 3, [1, 3])


def filled(directory: Path) -> Journal:
    """Return a journal whose first segment has no room for another line."""
    journal = open_journal(directory, segment_bytes=4096)
    journal.append(call_line(0, padding=4096 - LOSS_BYTES - len(header_line(0)) - len(call_line(0)) - 20))
    return journal


def losses_in(directory: Path) -> list[tuple[int, list[int]]]:
    """Return how many records are told to be lost, and of which calls."""
    records = [events.decode(line) for line in records_in(directory) if line.startswith(b'{"kind":"dropped"')]
    return [(each.records, each.calls) for each in records if isinstance(each, events.Dropped)]


def test_disk_that_stays_full_is_told_at_the_end(tmp_path: Path) -> None:
    journal = filled(tmp_path)

    with no_space_for_files_above(1000):
        for call in range(1, 6):
            journal.append(call_line(call, padding=200))
        journal.close()

    assert losses_in(tmp_path) == [(5, [1, 5])]


def test_process_that_is_killed_on_a_full_disk_has_told_what_was_lost_by_the_last_tick(tmp_path: Path) -> None:
    journal = filled(tmp_path)

    with no_space_for_files_above(1000):
        for call in range(1, 4):
            journal.append(call_line(call, padding=200))
            journal.tick()
        journal.append(call_line(4, padding=200))

    assert losses_in(tmp_path) == [(3, [1, 3])]  # it is neither closed nor told of the last one
    journal.close()


def test_losses_told_on_a_full_disk_are_not_told_again_when_there_is_space(tmp_path: Path) -> None:
    journal = filled(tmp_path)

    with no_space_for_files_above(1000):
        journal.append(call_line(1, padding=200))
        journal.tick()
        journal.append(call_line(2, padding=200))
    journal.tick()
    journal.append(call_line(3, padding=200))
    journal.append(call_line(4, padding=200))
    journal.close()

    assert losses_in(tmp_path) == [(2, [1, 2])]
    assert records_in(tmp_path)[-1] == call_line(4, padding=200)
    assert len(records_in(tmp_path)) == 4


def test_full_disk_is_not_tried_again_at_every_call(tmp_path: Path) -> None:
    begun = []

    def header(segment: int) -> bytes:
        begun.append(segment)
        return header_line(segment)

    journal = open_journal(tmp_path, header=header)
    with no_space_for_files_above(1000):
        for call in range(20):
            journal.append(call_line(call))
    journal.close()

    assert begun == [0]


def test_log_that_began_on_a_full_disk_goes_on_when_there_is_space(tmp_path: Path) -> None:
    with no_space_for_files_above(1000):
        journal = open_journal(tmp_path)
        journal.append(call_line(1))
    journal.tick()
    journal.append(call_line(2))
    journal.close()

    header, dropped, last = lines_in(tmp_path)
    assert (header, last) == (header_line(0), call_line(2))
    assert b'"no-space"' in dropped


def test_space_of_a_segment_is_reserved_before_it_is_written(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, segment_bytes=1 << 20)

    journal.append(call_line(1))

    assert journal.path.stat().st_blocks * 512 >= 1 << 20  # no hole, so no SIGBUS on a full file system
    journal.close()


def test_next_segment_is_prepared_while_the_present_one_fills(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, segment_bytes=4096)
    journal.append(call_line(1, padding=1000))
    journal.tick()
    assert len(list(tmp_path.iterdir())) == 1

    journal.append(call_line(2, padding=2000))
    journal.tick()
    with no_space_for_files_above(1000):  # so it cannot be made now
        journal.append(call_line(3, padding=2000))
    journal.close()

    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank00000.0001.jsonl", "rank00000.jsonl"]
    assert len(records_in(tmp_path)) == 3
