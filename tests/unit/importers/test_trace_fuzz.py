"""Damaged traces give rows whose shares add up, or a hint, and never an error of their own."""

import gzip
import json
import random
from pathlib import Path

import pytest

from distdiag.errors import DistdiagError
from distdiag.importers import profiler
from tests.traces import Trace

SEEDS = 60
FILES = 4
STRANGE = (b"NaN", b'"', b"{", b"}", b"[", b"]", b",", b"\\", b"\0", b"\xff", b"1e400", b"9" * 23, b"null", b'},{"ph"')


def original(rank: int) -> Trace:
    trace = Trace(rank=rank, world_size=FILES)
    for step in range(3):
        begin = step * 100
        trace.step(step, at=begin)
        for number in range(5):
            trace.kernel(f"gemm_{number}", at=begin + 10 + number * 10, lasts=5)
        trace.all_reduce(at=begin + 70, lasts=10).copy(at=begin + 85, lasts=3)
    return trace.event("cpu_op", 'a "quoted\\ name', 5, 1, dims=[[1, 2], []])


def damaged(trace: Trace, chance: random.Random) -> bytes:
    text = bytearray((trace.text() if chance.random() < 0.6 else trace.on_one_line()).encode())
    for _ in range(chance.choice([0, 1, 2, 5, 20])):
        place = chance.randrange(len(text))
        kind = chance.randrange(4)
        if kind == 0:
            del text[place : place + chance.choice([1, 3, 50, 500])]
        elif kind == 1:
            text[place:place] = chance.choice(STRANGE)
        elif kind == 2:
            text[place : place + 4] = chance.choice(STRANGE)
        else:
            other = chance.randrange(len(text))
            text[place:place] = text[other : other + 200]
    if chance.random() < 0.2:
        del text[chance.randrange(len(text)) :]
    if chance.random() < 0.3:
        text = bytearray(gzip.compress(bytes(text), 1))
        text[chance.randrange(len(text))] ^= 1 << chance.randrange(8)
    return bytes(text)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_damaged_traces_are_read_without_an_error(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    size = chance.choice([300, 1000, 1 << 21])
    monkeypatch.setattr("distdiag.importers._traces.pieces.CHUNK_BYTES", size)
    monkeypatch.setattr("distdiag.importers._traces.pieces.CHUNK_BYTES", size)
    files = [tmp_path / f"trace_rank{rank}.json" for rank in range(FILES)]
    for rank, file in enumerate(files):
        file.write_bytes(damaged(original(rank), chance))

    hint = ""
    try:
        rows = profiler.read(files).tables.profiles.to_dict("records")
    except DistdiagError as error:
        rows, hint = [], error.hint

    assert rows or hint
    for row in rows:
        assert min(row["idle_ns"], row["exposed_ns"], row["memory_ns"]) >= 0
        assert row["idle_ns"] + row["compute_ns"] <= row["window_ns"]
        assert row["exposed_ns"] <= row["communication_ns"] <= row["window_ns"]
        assert row["host_wait_ns"] + row["kernel_wait_ns"] + row["other_wait_ns"] == row["idle_ns"]
        json.dumps(row["streams"])
