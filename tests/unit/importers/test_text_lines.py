"""Lines are read in bounded memory whatever a file holds."""

import os
import time
import tracemalloc
from pathlib import Path

import pytest

from distdiag.importers import stderr
from distdiag.importers._text import lines
from distdiag.importers._text.lines import MAX_LINE_BYTES, left_out_bytes, raw_lines
from tests.training_output import watchdog

GIB = 1 << 30
MIB = 1 << 20


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_lines_and_their_numbers_are_those_of_the_file(tmp_path: Path) -> None:
    file = written(tmp_path / "a.log", b"one\n\ntwo\r\nthree")

    read = [(line.number, line.data) for line in raw_lines(file)]

    assert read == [(1, b"one"), (2, b""), (3, b"two\r"), (4, b"three")]


def test_a_long_line_is_cut_and_the_next_one_is_whole(tmp_path: Path) -> None:
    file = written(tmp_path / "a.log", b"x" * (3 * MIB) + b"\nnext\n")

    first, second = raw_lines(file)

    assert len(first.data) == MAX_LINE_BYTES
    assert second.data == b"next"


def test_the_hole_of_a_truncated_log_is_left_out_and_what_follows_is_not(tmp_path: Path) -> None:
    file = written(tmp_path / "a.log", b"\0" * (2 * MIB + 17) + b"after the hole\nnext\n")

    read = [line.data for line in raw_lines(file)]

    assert read == [b"after the hole", b"next"]


def test_the_middle_of_a_huge_file_is_left_out_and_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(lines, "HEAD_BYTES", 1000)
    monkeypatch.setattr(lines, "TAIL_BYTES", 500)
    file = written(tmp_path / "a.log", b"".join(b"%09d\n" % number for number in range(1000)))

    read = [line.data for line in raw_lines(file)]

    assert read[0] == b"000000000"
    assert read[-1] == b"000000999"
    assert len(read) == 150
    assert left_out_bytes(file) == 8500


def test_a_line_of_a_gibibyte_takes_little_memory_and_time(tmp_path: Path) -> None:
    file = tmp_path / "train.log"
    with file.open("wb") as out:
        os.ftruncate(out.fileno(), GIB)  # a hole: no byte of it is on the disk
        out.seek(GIB)
        out.write(("\n" + watchdog(0, 7) + "\n" + watchdog(1, 7) + "\n").encode())
    began = time.monotonic()
    tracemalloc.start()

    imported = list(stderr.read([file]))

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [each.rank for each in imported] == [0, 1, None]
    assert "MiB in the middle" in imported[-1].notes[0]
    assert peak < 32 * MIB
    assert time.monotonic() - began < 20
