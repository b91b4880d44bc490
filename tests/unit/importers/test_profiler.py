"""Traces of the profiler as files: formats, ranks, damage and hostile content."""

import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from distdiag.analyzers import diagnose
from distdiag.errors import DistdiagError
from distdiag.importers import load, profiler
from distdiag.importers._contract import Measured
from tests.logs import Logs
from tests.traces import Trace

KERNELS = 40
KERNEL_US, EVERY_US = 3.5, 10.0


def plain(**options: Any) -> Trace:
    """Forty kernels of 3.5 us, one every 10 us."""
    trace = Trace(**options)
    for number in range(KERNELS):
        trace.kernel(f"gemm_{number % 3}", at=10 + number * EVERY_US, lasts=KERNEL_US)
    return trace


def read(*files: Path) -> Measured:
    for file in files:
        assert profiler.recognises(file, file.read_bytes()[: 64 << 10]), file.name
    return profiler.read(files)


def measured(file: Path) -> dict[str, Any]:
    """Return the only row of a file."""
    (row,) = read(file).tables.profiles.to_dict("records")
    return {str(name): value for name, value in row.items()}


def written(directory: Path, text: str, name: str = "trace_rank-0.json") -> Path:
    file = directory / name
    file.write_text(text)
    return file


# ---- formats ----------------------------------------------------------------------------------------------------
def in_lines(trace: Trace) -> bytes:
    return trace.text().encode()


def on_one_line(trace: Trace) -> bytes:
    return trace.on_one_line().encode()


def compact(trace: Trace) -> bytes:
    return json.dumps(json.loads(trace.text()), separators=(",", ":")).encode()


def indented(trace: Trace) -> bytes:
    return json.dumps(json.loads(trace.text()), indent=4).encode()


def bare_array(trace: Trace) -> bytes:
    return json.dumps(json.loads(trace.text())["traceEvents"]).encode()


def with_mark(trace: Trace) -> bytes:
    return b"\xef\xbb\xbf" + trace.text().encode()


def packed(trace: Trace) -> bytes:
    return packed_text(trace.text().encode())


def packed_text(text: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(text) + packer.flush()


def packed_in_members(trace: Trace) -> bytes:
    text = trace.text().encode()
    return packed_text(text[:1000]) + packed_text(text[1000:])


FORMATS = (in_lines, on_one_line, compact, indented, bare_array, with_mark, packed, packed_in_members)


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_gives_the_same_times(form: Any, tmp_path: Path) -> None:
    file = tmp_path / "trace_rank-3.json"
    file.write_bytes(form(plain(rank=3)))

    row = measured(file)

    assert (row["rank"], row["activities"]) == (3, KERNELS)
    assert row["compute_ns"] == KERNELS * 3500
    assert row["window_ns"] == (KERNELS - 1) * 10_000 + 3500


@pytest.mark.parametrize("form", [in_lines, on_one_line, bare_array])
def test_events_are_the_same_in_whatever_pieces_they_come(
    form: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "trace_rank-0.json"
    file.write_bytes(form(plain()))
    for size in (700, 1013, 4096):
        monkeypatch.setattr("distdiag.importers._traces.pieces.CHUNK_BYTES", size)

        assert measured(file)["compute_ns"] == KERNELS * 3500


def test_objects_within_arguments_are_no_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distdiag.importers._traces.pieces.CHUNK_BYTES", 500)
    trace = Trace()
    for number in range(20):
        trace.kernel("gemm", at=10 + 10 * number, lasts=1, Shapes=[{"ph": "X"}, {"ph": "a }, {"}], Text='}, {"ph": "X"')

    row = measured(written(tmp_path, trace.on_one_line()))

    assert (row["activities"], row["compute_ns"]) == (20, 20_000)


def test_whole_microseconds_are_microseconds(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": [event(ts=1_682_725_898_000_000, dur=3), event(ts=1_682_725_898_000_010, dur=3)]})

    row = measured(written(tmp_path, text))

    assert (row["window_ns"], row["compute_ns"]) == (13_000, 6_000)


def test_an_epoch_with_three_decimals_is_exact(tmp_path: Path) -> None:
    text = (
        '{"traceEvents": ['
        + ",".join(
            json.dumps(event(ts="@", dur=0.001)).replace('"@"', f"1712195495505583.{decimals}")
            for decimals in ("000", "001", "255", "999")
        )
        + "]}"
    )

    row = measured(written(tmp_path, text))

    assert (row["window_ns"], row["compute_ns"], row["idle_ns"]) == (1000, 4, 996)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [("5", 5000), ("5.5", 5500), ("0.001", 1), ("1.7e3", 1_700_000), ('"5.250"', 5250), ("5.0004", 5000)],
)
def test_a_duration_is_understood_however_it_is_written(text: str, nanoseconds: int, tmp_path: Path) -> None:
    content = json.dumps({"traceEvents": [event(ts=10, dur="@")]}).replace('"@"', text)

    assert measured(written(tmp_path, content))["window_ns"] == nanoseconds


def event(**fields: Any) -> dict[str, Any]:
    args = {"device": 0, "stream": 7, "correlation": 1}
    return {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1.5, "dur": 2.5, "args": args, **fields}


def test_an_amd_trace_has_no_limit_of_its_queue(tmp_path: Path) -> None:
    trace = plain()
    trace.facts = {"roctracer_version": 4.1, "hip_runtime_version": 60443483}

    row = measured(trace.write(tmp_path))

    assert row["streams"][0]["queue"]["full_share"] is None
    assert row["streams"][0]["queue"]["longest"] == 1


@pytest.mark.parametrize("cat", ["Kernel", "Memcpy", "gpu_memset"])
def test_old_names_of_categories_are_known(cat: str, tmp_path: Path) -> None:
    row = measured(Trace().kernel("x", at=5, lasts=2, cat=cat).write(tmp_path))

    assert row["compute_ns" if cat == "Kernel" else "memory_ns"] == 2000


# ---- ranks ------------------------------------------------------------------------------------------------------
def test_the_rank_is_what_the_trace_says_whatever_the_file_is_called(tmp_path: Path) -> None:
    assert measured(plain(rank=5).write(tmp_path, "trace_rank-1.json"))["rank"] == 5


def test_without_distributed_info_the_name_tells_the_rank(tmp_path: Path) -> None:
    assert measured(plain(rank=None, world_size=None).write(tmp_path, "job_rank-6.123.pt.trace.json"))["rank"] == 6


def test_where_nothing_tells_the_rank_traces_are_numbered_and_that_is_said(tmp_path: Path) -> None:
    named = plain(rank=0).write(tmp_path, "c_rank0.json")
    files = [plain(rank=None, world_size=None).write(tmp_path, f"{name}_4711.json") for name in "ab"]

    found = read(named, *files)

    assert dict(zip(found.tables.profiles["file"], found.tables.profiles["rank"], strict=True)) == {
        "c_rank0.json": 0,
        "a_4711.json": 1,
        "b_4711.json": 2,
    }
    assert [note for note in found.notes if "tells its rank" in note] == [
        "neither a_4711.json nor its name tells its rank: it is called rank 1 here",
        "neither b_4711.json nor its name tells its rank: it is called rank 2 here",
    ]
    assert ["tells its rank" in " ".join(notes) for notes in found.tables.profiles["notes"]] == [False, True, True]


def test_several_traces_of_one_rank_stay_apart_and_are_said(tmp_path: Path) -> None:
    files = [plain(rank=2).write(tmp_path / folder, "trace.json") for folder in ("step10", "step20")]

    found = read(*files)

    assert found.tables.profiles["file"].tolist() == ["step10/trace.json", "step20/trace.json"]
    assert "2 traces are of rank 2: step10/trace.json, step20/trace.json" in found.notes


def test_the_order_of_files_does_not_matter(tmp_path: Path) -> None:
    files = [plain(rank=rank).write(tmp_path) for rank in range(3)]

    one, other = read(*files), read(*reversed(files))

    assert one.tables.profiles.to_dict("records") == other.tables.profiles.to_dict("records")


# ---- damage -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("form", [in_lines, on_one_line])
def test_a_cut_file_gives_its_complete_events_wherever_it_is_cut(form: Any, tmp_path: Path) -> None:
    content = form(plain())
    whole = [
        content.find(b'"dur"', place) for place in range(len(content)) if content[place : place + 8] == b'"kernel"'
    ]
    ends = [content.index(b"}", content.index(b"}", place) + 1) + 1 for place in whole]
    file = tmp_path / "trace_rank-0.json"
    for cut in range(whole[0], ends[-1] + 40, 97):
        file.write_bytes(content[:cut])
        complete = sum(end <= cut for end in ends)

        found = read(file)

        assert any("truncated" in note for note in found.notes) == (cut < len(content.rstrip()))
        assert int(found.tables.profiles["activities"].iloc[0]) == complete, cut


def test_a_cut_packed_file_gives_what_can_be_unpacked(tmp_path: Path) -> None:
    trace = Trace()
    for number in range(2000):
        trace.kernel(f"gemm_{number * 7919 % 1000}", at=10 + number * EVERY_US, lasts=KERNEL_US)
    content = packed(trace)
    file = tmp_path / "trace_rank-0.json.gz"
    kept = []
    for share in (0.3, 0.6, 0.9, 0.999):
        file.write_bytes(content[: int(len(content) * share)])

        found = read(file)

        kept.append(int(found.tables.profiles["activities"].iloc[0]))
        assert any("is truncated (its compressed data ends early)" in note for note in found.notes)
    assert kept == sorted(kept)
    assert 400 < kept[0] < 900
    assert kept[-1] > 1900


def test_damaged_compression_gives_what_comes_before(tmp_path: Path) -> None:
    content = packed(plain(rank=1))
    file = tmp_path / "trace_rank-1.json.gz"
    file.write_bytes(content[: len(content) - 8] + b"\0" * 8)

    found = read(file)

    assert int(found.tables.profiles["activities"].iloc[0]) == KERNELS
    assert any("its compression is damaged" in note for note in found.notes)


def test_an_event_in_the_middle_that_is_damaged_costs_only_itself(tmp_path: Path) -> None:
    text = plain().text()
    places = [place for place in range(len(text)) if text.startswith('"kernel"', place)]
    damaged = text[: places[10]] + text[places[10] + 3 :]

    found = read(written(tmp_path, damaged))

    assert int(found.tables.profiles["activities"].iloc[0]) == KERNELS - 1
    assert any("make no sense" in note for note in found.notes)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_what_no_number_is_in_arguments_does_not_stop_reading(word: str, tmp_path: Path) -> None:
    trace = plain().event("cpu_op", "op", 5, 1, bandwidth="@")

    row = measured(written(tmp_path, trace.text().replace('"@"', word)))

    assert (row["activities"], row["compute_ns"]) == (KERNELS, KERNELS * 3500)


def test_times_stay_exact_where_a_piece_has_to_be_mended(tmp_path: Path) -> None:
    trace = Trace().kernel("a", at=0.001, lasts=1).kernel("b", at=7.123, lasts=1).event("cpu_op", "op", 5, 1, x="@")

    row = measured(written(tmp_path, trace.text().replace('"@"', "NaN")))

    assert row["window_ns"] == 8122


STRANGE: dict[str, Any] = {
    "no times": {"ts": None, "dur": None},
    "NaN as text": {"ts": "NaN"},
    "a time in words": {"ts": "yesterday"},
    "huge time": {"ts": 10**40},
    "negative duration": {"dur": -5},
    "a list for a time": {"ts": [1]},
    "a number for a name": {"name": 5},
    "a list for a category": {"cat": ["kernel"]},
    "arguments that are text": {"args": "stream 7"},
    "arguments that are a list": {"args": [7]},
    "a stream in words": {"args": {"stream": "default", "device": 0, "correlation": 1}},
    "no stream": {"args": {"device": 0}},
}


def test_a_file_whose_only_kernel_has_no_time_has_no_shares(tmp_path: Path) -> None:
    timeless = {name: value for name, value in event().items() if name not in ("ts", "dur")}

    row = measured(written(tmp_path, json.dumps({"traceEvents": [timeless]})))

    assert (row["activities"], row["notes"][0]) == (0, "no device activity")


@pytest.mark.parametrize("strange", STRANGE.values(), ids=STRANGE)
def test_strange_events_do_not_count_and_the_others_do(strange: dict[str, Any], tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": [event(), event(**strange), event(ts=11.5)]})

    row = measured(written(tmp_path, text))

    assert (row["activities"], row["window_ns"]) == (2, 12_500)


# ---- hostile ----------------------------------------------------------------------------------------------------
HOSTILE: dict[str, bytes] = {
    "deep nesting": b'{"traceEvents": [' + b"[" * 200_000 + b"]" * 200_000 + b"]}",
    "deep nesting in an event": b'{"traceEvents": [{"ph": "X", "args": '
    + b'{"a":' * 100_000
    + b"1"
    + b"}" * 100_001
    + b"]}",
    "nothing but brackets": b'{"traceEvents": [' + b"[{" * 500_000,
    "nothing after the head": b'{"schemaVersion": 1, "deviceProperties": [], "distributedInfo": {"rank": 0},',
    "events that are no list": b'{"traceEvents": 5}',
    "events that are nothing": b'{"traceEvents": [null, 5, "x", [], {}, true]}',
    "a number of a million digits": b'{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": ' + b"9" * 1_000_000 + b"}]}",
    "half a character": b'{"traceEvents": [{"name": "\\ud800", "cat": "kernel", "ts": 1, "dur": 1}]}',
    "no characters": b'{"traceEvents": [{"name": "\xff\xfe", "cat": "kernel", "ts": 1, "dur": 1}]}',
    "facts of other types": b'{"traceEvents": [], "distributedInfo": 5, "baseTimeNanoseconds": "x"}',
    "a huge rank": b'{"traceEvents": [], "distributedInfo": {"rank": 1' + b"0" * 30 + b"}}",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_content_is_a_report_or_a_hint(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "trace_rank-0.json").write_bytes(content)

    try:
        said = diagnose(load(tmp_path)).verdict.name
    except DistdiagError as error:
        said = error.hint

    assert said


BOMB = """
import resource, sys, zlib
from pathlib import Path
from distdiag.importers import profiler
from distdiag.errors import DistdiagError

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    profiler.read([Path(sys.argv[1])])
except DistdiagError:
    pass
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


BOMBS = {
    "nothing in the list": b'{"traceEvents": [',
    "no list": b'{"schemaVersion": 1, "deviceProperties": [',
    "one name": b'{"traceEvents": [{"ph": "X", "name": "',
}


@pytest.mark.parametrize("begin", BOMBS.values(), ids=BOMBS)
def test_a_small_file_that_unpacks_to_very_much_takes_bounded_memory(begin: bytes, tmp_path: Path) -> None:
    packer = zlib.compressobj(1, wbits=31)
    file = tmp_path / "trace_rank-0.json.gz"
    block = b" " * (1 << 20)
    file.write_bytes(packer.compress(begin) + b"".join(packer.compress(block) for _ in range(1024)) + packer.flush())

    done = subprocess.run(
        [sys.executable, "-c", BOMB, str(file)], capture_output=True, text=True, timeout=120, check=True
    )

    assert int(done.stdout) < 300, "MiB"


# ---- what the command says --------------------------------------------------------------------------------------
def test_nothing_but_files_that_hold_no_trace_is_an_error_with_a_hint(tmp_path: Path) -> None:
    written(tmp_path, '{"schemaVersion": 1, "deviceProperties": [')

    with pytest.raises(DistdiagError, match="it ends before its first event") as caught:
        load(tmp_path)

    assert "export_chrome_trace" in caught.value.hint


def test_one_file_without_a_trace_is_said_and_the_others_are_read(tmp_path: Path) -> None:
    plain(rank=0).write(tmp_path)
    written(tmp_path, '{"schemaVersion": 1, "deviceProperties": [', "trace_rank-1.json")

    run = load(tmp_path)

    assert run.profiles["rank"].tolist() == [0]
    assert any("trace_rank-1.json could not be read" in note for note in run.quality.notes)


def test_logs_and_traces_in_one_directory_both_count(tmp_path: Path) -> None:
    logs = Logs(2)
    for rank in logs:
        rank.all_reduce("train.py:10 step")
        rank.exit()
    logs.write(tmp_path)
    for number in range(2):
        plain(rank=number, world_size=2).write(tmp_path)

    report = diagnose(load(tmp_path))

    assert report.verdict.name == "healthy"
    assert [position.rank for position in report.positions] == [0, 1]
    assert [row["rank"] for row in report.performance["profiler"]] == [0, 1]


def test_traces_of_other_tools_are_no_profiler_traces(tmp_path: Path) -> None:
    logs = Logs(1)
    logs[0].all_reduce("train.py:10 step")
    logs[0].exit()
    directory = logs.write(tmp_path / "logs")
    exported = tmp_path / "logs" / "export.json"

    subprocess.run(
        [sys.executable, "-m", "distdiag", "trace", str(directory), "-o", str(exported)], check=True, timeout=150
    )

    assert b'"traceEvents"' in exported.read_bytes()
    assert not profiler.recognises(exported, exported.read_bytes()[: 64 << 10])
    assert diagnose(load(directory)).performance["profiler"] == []


def test_a_dump_of_the_flight_recorder_is_no_trace() -> None:
    assert not profiler.recognises(Path("dump.json"), b'{"version": "2.9", "pg_config": {}, "entries": []}')
    assert not profiler.recognises(Path("x.json.gz"), packed_text(b'{"loss": 1}'))
    assert not profiler.recognises(Path("x.json.gz"), b"\x1f\x8bnonsense")
