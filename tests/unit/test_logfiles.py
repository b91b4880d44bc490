"""How much of a log file is written, found without reading it."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distdiag.run.logfiles import LogFile, discover, last_lines

LINE = b'{"kind":"pulse","time_ns":1,"step":0}\n'


def described(directory: Path, data: bytes) -> LogFile:
    (directory / "rank00007.jsonl").write_bytes(data)
    (log,) = discover(directory)
    return log


def test_the_name_tells_rank_and_attempt(tmp_path: Path) -> None:
    (tmp_path / "rank00007.attempt2.0001.jsonl").write_bytes(LINE)

    (log,) = discover(tmp_path)

    assert (log.named_rank, log.attempt, log.stem) == (7, 2, "rank00007")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.integers(0, 4000), space=st.integers(0, 500_000))
def test_reserved_space_is_not_counted_wherever_it_begins(
    tmp_path_factory: pytest.TempPathFactory, lines: int, space: int
) -> None:
    directory = tmp_path_factory.mktemp("logs")

    log = described(directory, LINE * lines + b"\0" * space)

    assert (log.used_bytes, log.size_bytes, log.torn) == (len(LINE) * lines, len(LINE) * lines + space, False)


def test_a_torn_line_is_not_counted_and_told(tmp_path: Path) -> None:
    log = described(tmp_path, LINE * 3 + LINE[:-9] + b"\0" * 10_000)

    assert (log.used_bytes, log.torn) == (3 * len(LINE), True)


def test_a_torn_line_may_be_longer_than_what_is_looked_at(tmp_path: Path) -> None:
    log = described(tmp_path, LINE + b'{"kind":"stack","threads":"' + b"x" * 3_000_000)

    assert (log.used_bytes, log.torn) == (len(LINE), True)


def test_what_stands_behind_a_hole_is_not_lost(tmp_path: Path) -> None:
    data = LINE * 100 + b"\0" * 300_000 + LINE * 2000

    log = described(tmp_path, data + b"\0" * 50_000)

    assert log.used_bytes == len(data)


def test_the_last_lines_are_whole(tmp_path: Path) -> None:
    log = described(tmp_path, LINE * 50_000 + LINE[:5])

    assert set(last_lines(log)) == {LINE.rstrip(), b""}
