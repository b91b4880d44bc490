"""Reading a log back: any sequence of records, cut anywhere, is a prefix of what was written."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distdiag.journal import Log, log_name, read_lines, segments_of
from tests.journals import header_line, open_journal, records_in

LINES = st.lists(st.binary(max_size=60).map(lambda text: text.replace(b"\0", b"").replace(b"\n", b"") + b"\n"))
"""Any lines: what stands in them does not matter to the journal."""


def read(content: bytes) -> list[bytes]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return list(read_lines(Path(file.name)))


@given(LINES, st.integers(min_value=0), st.integers(min_value=0, max_value=5000))
def test_log_cut_anywhere_reads_back_as_a_prefix(lines: list[bytes], cut: int, reserved: int) -> None:
    content = b"".join(lines)
    cut %= len(content) + 1

    found = read(content[:cut] + bytes(reserved))

    whole = content[:cut].count(b"\n")
    assert found == lines[:whole]


@given(LINES, st.binary(min_size=1, max_size=200), st.data())
def test_half_copied_tail_is_left_out(lines: list[bytes], tail: bytes, data: st.DataObject) -> None:
    # A copy may have been cut in any order: some bytes of the last append are there, the others are NULs.
    hole = data.draw(st.integers(min_value=0, max_value=len(tail) - 1))
    torn = (tail[:hole].replace(b"\n", b"") + b"\0" + tail[hole + 1 :]) + b"\n" + b'{"kind":"call"}\n' + bytes(100)

    found = read(b"".join(lines) + torn)

    assert found == lines


@settings(deadline=None, max_examples=60)
@given(st.lists(LINES.filter(bool).map(b"".join)), st.integers(min_value=1, max_value=400), st.sets(st.integers(0, 20)))
def test_any_sequence_over_any_segments_reads_back_whole(
    appends: list[bytes], segment_bytes: int, ticks: set[int]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        journal = open_journal(directory, segment_bytes=segment_bytes)

        for number, lines in enumerate(appends):
            journal.append(lines)
            if number in ticks:
                journal.tick()

        assert b"".join(records_in(directory)) == b"".join(appends)
        journal.close()
        assert b"".join(records_in(directory)) == b"".join(appends)


def test_lines_longer_than_what_is_read_at_once() -> None:
    lines = [b"a" * 3_000_000 + b"\n", b"b\n", b"c" * (1 << 20) + b"\n"]

    assert read(b"".join(lines) + bytes(3 << 20)) == lines


def test_nothing_is_read_behind_the_end() -> None:
    assert read((b"a\n" + bytes(100)).ljust(2 << 20, b"\0") + b"b\n") == [b"a\n"]


def test_segments_are_grouped_by_name_and_attempt_and_ordered_by_number(tmp_path: Path) -> None:
    names = [
        "node7.0001-55.jsonl",
        *("rank00003.0002.jsonl", "rank00003.0010.jsonl", "rank00003.10000.jsonl"),
        *("rank00003.attempt12.0001.jsonl", "rank00003.attempt12.jsonl", "rank00003.attempt2.jsonl"),
        "rank00003.jsonl",
    ]
    for name in (*names, "notes.txt", ".rank00003.0011.jsonl.spare", "rank00003.crash.txt"):
        (tmp_path / name).write_bytes(header_line(0))
    (tmp_path / "rank00004.jsonl").mkdir()

    logs = segments_of(tmp_path)

    assert logs == [
        Log(stem="node7.0001-55", attempt=0, files=(tmp_path / "node7.0001-55.jsonl",)),
        Log(stem="rank00003", attempt=0, files=(tmp_path / names[7], *(tmp_path / name for name in names[1:4]))),
        Log(stem="rank00003", attempt=2, files=(tmp_path / names[6],)),
        Log(stem="rank00003", attempt=12, files=(tmp_path / names[5], tmp_path / names[4])),
    ]
    assert [log.rank for log in logs] == [None, 3, 3, 3]


@pytest.mark.parametrize("rank", [0, 7, 123456])
def test_name_of_a_log_tells_the_rank(tmp_path: Path, rank: int) -> None:
    (tmp_path / f"{log_name(rank)}.jsonl").touch()

    assert segments_of(tmp_path)[0].rank == rank


def test_binary_junk_named_like_a_log_is_listed_and_read_without_error(tmp_path: Path) -> None:
    (tmp_path / "rank00000.jsonl").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "rank00001.jsonl").write_bytes(b'{"kind":"dropped","segment":"x"}\n')
    (tmp_path / "rank00002.jsonl").touch()

    assert [list(read_lines(log.files[0])) for log in segments_of(tmp_path)] == [
        [],
        [b'{"kind":"dropped","segment":"x"}\n'],
        [],
    ]
