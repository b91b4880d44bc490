"""A packed run says what its logs say."""

import io
import shutil
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner

from distdiag import importers
from distdiag.analyzers import diagnose
from distdiag.commands import pack
from distdiag.engine.packs import MANIFEST
from distdiag.errors import DistdiagError
from distdiag.reporters import json as json_reporter
from distdiag.run import window
from tests.logs import Logs

SAMPLES = Path("sample_logs")
STEPS = 40


def report(path: Path) -> str:
    out = io.StringIO()
    json_reporter.render(diagnose(importers.load(path)), out)
    return out.getvalue()


def job(directory: Path, *, world_size: int = 64) -> Path:
    """A job of two nodes whose last rank is slow, and hangs in the end."""
    logs = Logs(world_size=world_size, ranks_per_host=world_size // 2)
    for rank in logs:
        slow = 0.02 if rank.rank == world_size - 1 else 0.0
        rank.new_group(range(world_size), "train.py:5 main")
        for step in range(STEPS):
            rank.at(1.0 + step * 0.1 + slow).all_reduce("train.py:10 step", seconds=0.03 - slow)
            rank.at(1.04 + step * 0.1).all_gather("train.py:12 step", group="1", seconds=0.01)
            rank.at(1.09 + step * 0.1).end_step(seconds=0.09, facts={"tokens": 100 + rank.rank}, forward_ns=40_000_000)
    logs[world_size - 1].data_loading("data.py:5 load")
    for rank in logs.but(world_size - 1):
        rank.all_reduce("train.py:10 step", pending=True)
    return logs.write(directory)


@pytest.mark.parametrize("sample", sorted(path.name for path in SAMPLES.iterdir()))
def test_a_packed_sample_gives_the_same_report(sample: str, tmp_path: Path) -> None:
    importers.pack(SAMPLES / sample, tmp_path / "packed")

    assert report(tmp_path / "packed") == report(SAMPLES / sample)


def test_a_packed_run_of_64_ranks_gives_the_same_report_and_is_smaller(tmp_path: Path) -> None:
    logs = job(tmp_path / "logs")

    packed, left_out = importers.pack(logs, tmp_path / "packed")

    assert report(tmp_path / "packed") == report(logs)
    assert packed.ranks == 64
    assert packed.written_bytes < packed.read_bytes / 2
    assert not left_out


def test_of_a_long_run_the_same_newest_part_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = job(tmp_path / "logs", world_size=4)
    monkeypatch.setattr(window, "WHOLE_BYTES", 1)
    monkeypatch.setattr(window, "LEAST_BYTES", 2000)
    monkeypatch.setattr(window, "HEAD_BYTES", 1000)
    monkeypatch.setattr("distdiag.run.packing.HEAD_BYTES", 1000)

    importers.pack(logs, tmp_path / "packed")

    newest = importers.load(logs)
    assert 0 < len(newest.calls) < 4 * STEPS
    assert report(tmp_path / "packed") == report(logs)


def test_what_is_damaged_is_so_in_the_pack_too(tmp_path: Path) -> None:
    logs = job(tmp_path / "logs", world_size=4)
    first = logs / "rank00000.jsonl"
    lines = first.read_bytes().splitlines(keepends=True)
    lines[5:5] = [b"no json\n", b'{"kind":"novelty","a":1}\n', b'{"kind":"call","call":3}\n']
    first.write_bytes(b"".join(lines) + b'{"kind":"call","ca' + bytes(100))
    (logs / "rank00003.jsonl").write_bytes(b"")

    importers.pack(logs, tmp_path / "packed")

    assert report(tmp_path / "packed") == report(logs)
    quality = importers.load(tmp_path / "packed").quality
    assert (quality.undecodable_lines, quality.torn_files) == ({"rank00000.jsonl": 2}, ("rank00000.jsonl",))
    assert (quality.unknown_kinds, quality.empty_files) == ({"novelty": 1}, ("rank00003.jsonl",))


def test_other_sources_are_packed_with_the_logs(tmp_path: Path) -> None:
    logs = job(tmp_path / "logs", world_size=4)
    (logs / "output.txt").write_text(
        "[rank3]: Traceback (most recent call last):\n"
        '[rank3]:   File "/job/train.py", line 8, in <module>\n'
        "[rank3]:     main()\n"
        "[rank3]: ValueError: no such shard\n"
    )

    importers.pack(logs, tmp_path / "packed")

    assert report(tmp_path / "packed") == report(logs)


def test_tables_hold_the_records_with_their_ranks(tmp_path: Path) -> None:
    run = importers.load(job(tmp_path / "logs", world_size=4))

    importers.pack(tmp_path / "logs", tmp_path / "packed")

    packed = importers.load(tmp_path / "packed")
    for kind in ("call", "done", "step", "pulse", "signature"):
        order = list(run.table(kind).columns)
        expected, found = (
            each.engine.frame(each.table(kind).select(order)).sort_values(order, ignore_index=True)
            for each in (run, packed)
        )
        assert found.equals(expected), kind
    pattern = tmp_path / "packed" / "kind=call" / "*" / "*.parquet"
    with duckdb.connect() as database:
        (rows,) = database.execute(f"SELECT count(*) FROM '{pattern}' WHERE rank = 2").fetchall()
    assert rows == ((run.calls["rank"] == 2).sum(),)


def test_a_pack_is_told_by_what_is_in_it(tmp_path: Path) -> None:
    importers.pack(SAMPLES / "healthy", tmp_path / "packed")
    moved = shutil.copytree(tmp_path / "packed", tmp_path / "elsewhere" / "again")

    assert importers.load(moved).ranks == (0, 1, 2, 3)
    with pytest.raises(DistdiagError, match="packed already"):
        importers.pack(moved, tmp_path / "twice")


def test_a_newer_pack_is_refused(tmp_path: Path) -> None:
    importers.pack(SAMPLES / "healthy", tmp_path / "packed")
    manifest = tmp_path / "packed" / MANIFEST
    manifest.write_text(manifest.read_text().replace("distdiag.pack/1", "distdiag.pack/2"))

    with pytest.raises(DistdiagError, match="this version reads"):
        importers.load(tmp_path / "packed")


def test_the_command_says_what_it_wrote_and_overwrites_nothing(tmp_path: Path) -> None:
    run = CliRunner()
    arguments = [str(SAMPLES / "healthy"), "-o", str(tmp_path / "packed")]

    first, second = (run.invoke(pack.command, arguments, standalone_mode=False) for _ in range(2))

    assert "4 logs of 4 ranks" in first.output
    assert isinstance(second.exception, DistdiagError)
    assert "there already" in str(second.exception)
