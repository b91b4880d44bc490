"""Following log files: only what was appended is read, whatever becomes of the files."""

import os
from pathlib import Path

import pytest

from distdiag import events
from distdiag.journal import Journal
from distdiag.live import tailing
from distdiag.live.tailing import Follower
from tests.journals import open_journal
from tests.watching import encoded


def pulse(moment: int, padding: int = 0) -> events.Pulse:
    return events.Pulse(time_ns=moment, step=0, phase="x" * padding)


def header(segment: int) -> bytes:
    return encoded(
        events.Header(
            schema=events.SCHEMA,
            run="job",
            attempt=0,
            rank=0,
            host="node0",
            pid=1,
            segment=segment,
            wall_ns=10,
            monotonic_ns=1,
            stall_after_seconds=60.0,
            max_bytes=1,
        )
    )


def journal_in(directory: Path, max_bytes: int = 256 << 20) -> Journal:
    return open_journal(directory, header=header, max_bytes=max_bytes)


def moments(follower: Follower) -> list[int]:
    return [record.time_ns for news in follower.look() for record in news.records if isinstance(record, events.Pulse)]


def test_second_look_reads_only_what_was_appended(tmp_path: Path) -> None:
    journal = journal_in(tmp_path)
    follower = Follower(tmp_path)
    journal.append(encoded(pulse(1), pulse(2)))

    first = moments(follower)
    journal.append(encoded(pulse(3)))
    second, third = moments(follower), moments(follower)
    journal.close()

    assert (first, second, third) == ([1, 2], [3], [])


def test_line_that_is_half_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    line = encoded(pulse(1), pulse(2))
    path = tmp_path / "rank00000.jsonl"
    path.write_bytes(line[:-9] + bytes(4096))
    follower = Follower(tmp_path)

    first = moments(follower)
    path.write_bytes(line + bytes(4096))

    assert (first, moments(follower)) == ([1], [2])


def test_all_segments_are_followed_while_they_roll_over(tmp_path: Path) -> None:
    journal = journal_in(tmp_path)
    follower = Follower(tmp_path)
    seen: list[int] = []

    for moment in range(1, 301):
        journal.append(encoded(pulse(moment, padding=50)))
        if moment % 100 == 1:
            journal.tick()
            seen += moments(follower)
    journal.close()
    seen += moments(follower)

    assert journal.segment > 3
    assert seen == list(range(1, 301))


def test_segments_that_were_condensed_before_they_were_read_are_passed_over(tmp_path: Path) -> None:
    journal = journal_in(tmp_path, max_bytes=6 * 4096)
    follower = Follower(tmp_path)
    journal.append(encoded(pulse(1)))
    first = moments(follower)

    for moment in range(2, 2001):
        journal.append(encoded(pulse(moment, padding=50)))
        if moment % 50 == 0:
            journal.tick()
    last = moments(follower)
    journal.close()

    assert first == [1]
    assert last[-1] == 2000
    assert last == sorted(last)


def test_of_a_long_log_the_end_is_read_and_what_it_leans_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tailing, "MOST_BYTES_PER_LOOK", tailing.LEAST_BYTES)
    path = events.Path(path=7, frames=["train.py:1 main"])
    lines = header(0) + encoded(pulse(1), path, *map(pulse, range(2, 5000)))
    (tmp_path / "rank00000.jsonl").write_bytes(lines + bytes(1 << 16))

    ((_, records, _),) = Follower(tmp_path).look()

    kinds = [type(record) for record in records]
    assert kinds[:2] == [events.Header, events.Path]
    assert set(kinds[2:]) == {events.Pulse}
    assert 100 < len(kinds) < 1000
    assert records[-1] == pulse(4999)


def test_directory_may_appear_later_and_vanish(tmp_path: Path) -> None:
    directory = tmp_path / "logs"
    follower = Follower(directory)

    nothing = moments(follower)
    assert not follower.present
    directory.mkdir()
    (directory / "rank00000.jsonl").write_bytes(encoded(pulse(1)))
    something = moments(follower)
    assert follower.present
    (directory / "rank00000.jsonl").unlink()
    directory.rmdir()

    assert (nothing, something, moments(follower)) == ([], [1], [])
    assert not follower.present


def test_newer_attempt_takes_the_place_of_the_older(tmp_path: Path) -> None:
    (tmp_path / "rank00000.jsonl").write_bytes(encoded(pulse(1)))
    follower = Follower(tmp_path)
    first = moments(follower)

    (tmp_path / "rank00000.attempt1.jsonl").write_bytes(encoded(pulse(2)))
    with (tmp_path / "rank00000.jsonl").open("ab") as older:
        older.write(encoded(pulse(3)))

    assert (first, moments(follower)) == ([1], [2])


def test_damaged_lines_are_counted_and_passed_over(tmp_path: Path) -> None:
    damaged = b'{"kind":"pulse","time_ns":\n{"kind":"of-tomorrow"}\n\xff\xfe\n'
    (tmp_path / "rank00000.jsonl").write_bytes(encoded(pulse(1)) + damaged + encoded(pulse(2)))
    follower = Follower(tmp_path)

    assert moments(follower) == [1, 2]
    assert follower.damaged == 3


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rank00000.jsonl"
    path.write_bytes(encoded(pulse(1)))
    path.chmod(0)
    follower = Follower(tmp_path)

    assert moments(follower) == []
    assert "rank00000" in follower.unreadable[0]
