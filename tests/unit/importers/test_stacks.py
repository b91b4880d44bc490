"""Dumps of py-spy and faulthandler: what they hold, and the verdict where there is nothing else."""

import json
import os
from pathlib import Path

import pytest

from distdiag import events
from distdiag.analyzers import diagnose
from distdiag.findings import Confidence, Report
from distdiag.importers import load, stacks, stderr
from distdiag.importers._text.dumps import from_json, from_text

SHARED = Path(__file__).parents[3].parent / "shared" / "data" / "log_lines"
C10D = "torch/distributed/distributed_c10d.py"
LOOP = ("/workspace/train.py", 88, "train_step")
MAIN = ("/workspace/train.py", 210, "<module>")

Frame = tuple[str, int, str]


def text_dump(*frames: Frame, pid: int = 100, name: str = "MainThread", rank: int | None = None) -> str:
    """A process as py-spy prints it; ``frames`` from the innermost."""
    lines = [f"### rank {rank}"] if rank is not None else []
    lines += [f"Process {pid}: python train.py", "Python v3.11.7 (/usr/bin/python3.11)", ""]
    lines += [f'Thread {pid} (idle): "{name}"', *(f"    {function} ({file}:{line})" for file, line, function in frames)]
    return "\n".join(lines) + "\n\n"


def json_dump(*frames: Frame, pid: int = 100) -> str:
    written = [{"name": function, "filename": file, "line": line, "module": None} for file, line, function in frames]
    thread = {
        "pid": pid,
        "thread_id": 1,
        "thread_name": "MainThread",
        "active": False,
        "owns_gil": False,
        "frames": written,
    }
    return json.dumps([thread])


def in_call(op: str, *user: Frame) -> tuple[Frame, ...]:
    return ((C10D, 4287, op), ("torch/distributed/c10d_logger.py", 83, "wrapper"), *user, MAIN)


LOADING = (
    ("/workspace/dataset.py", 31, "read_shard"),
    ("torch/utils/data/dataloader.py", 700, "__next__"),
    MAIN,
)


def report_of(tmp_path: Path, files: dict[str, str]) -> Report:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    return diagnose(load(tmp_path))


def test_a_dump_in_text_holds_every_thread_outermost_first() -> None:
    text = text_dump(*in_call("barrier")) + '    x\nThread 7 (active+gil): "Thread-1 (bg)"\n    work (a.py:3)\n'

    (dump,) = from_text(text.splitlines())

    assert [stack.thread for stack in dump.threads] == ["MainThread", "Thread-1 (bg)"]
    assert dump.threads[0].frames[0] == "/workspace/train.py:210 <module>"
    assert dump.threads[0].frames[-1] == f"{C10D}:4287 barrier"
    assert dump.threads[1].frames == ["a.py:3 work"]


def test_native_frames_have_no_line() -> None:
    (dump,) = from_text(['Thread 1 (idle): "MainThread"', "    epoll_wait (libc.so.6)", "    main (a.py:3)"])

    assert dump.threads[0].frames == ["a.py:3 main", "libc.so.6:0 epoll_wait"]


def test_a_dump_in_json_is_the_same_as_in_text() -> None:
    (from_a,) = from_json(json_dump(*in_call("barrier")).encode())
    (from_b,) = from_text(text_dump(*in_call("barrier")).splitlines())

    assert from_a.threads == from_b.threads
    assert from_a.pid == from_b.pid


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'[{"frames": 3}]', b"[[[", b'[{"frames": [{"name": 1}]}]'])
def test_json_that_is_no_dump_is_none(content: bytes) -> None:
    assert not list(from_json(content))


def test_a_dump_of_faulthandler_has_a_main_thread(tmp_path: Path) -> None:
    text = (
        "Timeout (0:01:00)!\nThread 0x00007f6 (most recent call first):\n"
        '  File "/usr/lib/python3.11/threading.py", line 9 in wait\n\n'
        "Thread 0x00007f5 (most recent call first):\n"
        '  File "/workspace/dataset.py", line 31 in read_shard\n  File "/workspace/train.py", line 210 in <module>\n'
    )

    (dump,) = from_text(text.splitlines())

    assert [stack.thread for stack in dump.threads] == ["0x00007f6", "MainThread"]
    assert dump.threads[1].frames == ["/workspace/train.py:210 <module>", "/workspace/dataset.py:31 read_shard"]
    assert stacks.recognises(tmp_path / "x", text.encode())


def test_dumps_and_logs_are_told_apart(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("step 1\nFatal Python error: Aborted\n\nThread 0x0 (most recent call first):\n")

    assert not stacks.recognises(log, log.read_bytes())
    assert stderr.recognises(log, log.read_bytes())
    assert stacks.recognises(log, text_dump(MAIN).encode())
    assert stacks.recognises(log, json_dump(MAIN).encode())


def test_the_rank_in_its_data_loader_is_missing(tmp_path: Path) -> None:
    files = {f"rank{rank}.txt": text_dump(*in_call("all_reduce", LOOP), pid=100 + rank) for rank in (0, 1, 3)}
    files["rank2.txt"] = text_dump(*LOADING)

    report = report_of(tmp_path, files)

    assert report.verdict.name == "rank-missing"
    assert report.verdict.culprits == (2,)
    assert report.verdict.cause == "data-loading"
    assert report.verdict.site == "/workspace/dataset.py:31"
    assert report.verdict.confidence is Confidence.LOW


def test_a_fatal_signal_is_the_end_of_the_process_that_tells_it_and_an_abort_is_where_it_stood(tmp_path: Path) -> None:
    frames = '\n\nCurrent thread 0x00007f (most recent call first):\n  File "/w/kernel.py", line 9 in fused\n'
    (tmp_path / "rank3.err").write_text("Fatal Python error: Segmentation fault" + frames)

    verdict = diagnose(load(tmp_path)).verdict

    assert (verdict.name, verdict.culprits, verdict.cause) == ("rank-died", (3,), "aborted")
    assert verdict.site == "/w/kernel.py:9"
    assert stacks.recognises(tmp_path, f"Fatal Python error: Aborted{frames}".encode())


def test_when_stacks_were_taken_tells_no_duration(tmp_path: Path) -> None:
    files = {f"rank{rank}.txt": text_dump(*in_call("all_reduce", LOOP), pid=100 + rank) for rank in (0, 1, 3)}
    for name, content in (files | {"rank2.txt": text_dump(*LOADING)}).items():
        (tmp_path / name).write_text(content)
    os.utime(tmp_path / "rank3.txt", (1_900_000_000, 1_900_000_000))

    verdict = diagnose(load(tmp_path)).verdict

    assert verdict.culprits == (2,)
    assert "was busy with data loading (dataset.py:31)" in verdict.summary


def test_one_look_does_not_show_that_anybody_stands_still_and_two_do(tmp_path: Path) -> None:
    once = {f"rank{rank}.txt": text_dump(*in_call("all_reduce", LOOP)) for rank in (0, 1, 3)}
    once["rank2.txt"] = text_dump(*LOADING)
    twice = {name: content * 2 for name, content in once.items()}

    for folder, files in (("once", once), ("twice", twice)):
        (tmp_path / folder).mkdir()
        report = report_of(tmp_path / folder, files)
        assert any("looked at once" in line for line in report.verdict.evidence) is (folder == "once")


def test_a_rank_that_moves_between_two_looks_does_not_wait(tmp_path: Path) -> None:
    files = {
        "rank0.txt": text_dump(*in_call("all_reduce", LOOP)) + text_dump(*in_call("barrier", MAIN)),
        "rank1.txt": text_dump(*LOADING) + text_dump(LOOP, MAIN),
    }

    report = report_of(tmp_path, files)

    assert not report.verdict.culprits
    assert "rank-missing" not in {finding.name for finding in report.findings}


def test_ranks_in_two_collectives_went_apart(tmp_path: Path) -> None:
    files = {f"rank{rank}.txt": text_dump(*in_call("barrier", MAIN)) for rank in (1, 2, 3)}
    files["rank0.txt"] = text_dump(*in_call("all_gather", ("/workspace/save.py", 7, "save")))

    verdict = report_of(tmp_path, files).verdict

    assert verdict.name == "sequence-divergence"
    assert verdict.culprits == (0,)
    assert verdict.site == "/workspace/save.py:7"


def test_ranks_stand_in_one_file_under_headings(tmp_path: Path) -> None:
    files = {
        "dump.txt": "".join(text_dump(*in_call("barrier", MAIN), rank=rank) for rank in (0, 1))
        + text_dump(*LOADING, rank=2)
    }

    assert report_of(tmp_path, files).verdict.culprits == (2,)


def test_stacks_of_unknown_ranks_are_noted(tmp_path: Path) -> None:
    file = tmp_path / "dump.txt"
    file.write_text(text_dump(*LOADING, pid=4711) + text_dump(MAIN, pid=4712))

    notes = [note for each in stacks.read([file]) for note in each.notes]

    assert "4711, 4712" in notes[0]


def test_stacks_become_records_with_where_they_came_from(tmp_path: Path) -> None:
    file = tmp_path / "rank3.txt"
    file.write_text(text_dump(*LOADING, pid=4711))

    (imported,) = stacks.read([file])

    header = imported.events[0]
    assert isinstance(header, events.Header)
    assert (header.rank, header.pid, header.source) == (3, 4711, "stacks")
    (stack,) = [record for record in imported.events if isinstance(record, events.Stack)]
    assert stack.source == "py-spy"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared lines are not here")
def test_two_threads_on_one_group_race() -> None:
    (file,) = SHARED.glob("local_06_*.txt")

    report = diagnose(load(file))

    assert report.verdict.name == "thread-race"
    assert not report.verdict.culprits
    assert {branch.thread for branch in report.stacks} == {"MainThread", "Thread-# (bg)"}
