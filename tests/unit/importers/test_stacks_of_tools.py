"""Stacks of pystack, gdb and folded ones, and pastes of several processes."""

from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.importers import load
from tests.commandline import distdiag

C10D = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
WAITS = (("/w/train.py", 140, "<module>"), ("/w/train.py", 88, "step"), (C10D, 2501, "all_reduce"))
READS = (("/w/train.py", 140, "<module>"), ("/w/data.py", 12, "read_shard"))
Frames = tuple[tuple[str, int, str], ...]


def pystack(frames: Frames) -> str:
    lines = [f'    (Python) File "{file}", line {line}, in {function}\n        x()' for file, line, function in frames]
    native = '    (C) File "???", line 0, in poll (libc.so.6)'
    return "\n".join(["Traceback for thread 4711 (python) [Has the GIL] (most recent call last):", *lines, native, ""])


def gdb(frames: Frames) -> str:
    lines = [
        f"#{number}  Frame 0x7f{number}, for file {file}, line {line}, in {function} (x=1)"
        for number, (file, line, function) in enumerate(reversed(frames))
    ]
    return "\n".join(["[New LWP 4712]", 'Thread 1 (Thread 0x7f3 (LWP 4711) "python"):', *lines, ""])


def folded(frames: Frames, others: int = 3) -> str:
    stack = ";".join(f"{function} ({file}:{line})" for file, line, function in frames)
    return f"{stack} 97\n<module> (/w/train.py:140);log (/w/train.py:5) {others}\n"


@pytest.mark.parametrize("tool", [pystack, gdb, folded], ids=["pystack", "gdb", "folded"])
def test_who_does_not_wait_is_told_by_stacks_of_other_tools(tool: object, tmp_path: Path) -> None:
    assert callable(tool)
    for rank in range(4):
        (tmp_path / f"rank{rank}.txt").write_text(tool(READS if rank == 2 else WAITS))

    verdict = diagnose(load(tmp_path)).verdict

    assert (verdict.name, verdict.culprits) == ("rank-missing", (2,))
    assert verdict.site == "/w/data.py:12"


def test_folded_stacks_of_a_process_that_moves_say_no_place(tmp_path: Path) -> None:
    (tmp_path / "rank0.txt").write_text(folded(WAITS, others=97))

    done = distdiag("analyze", tmp_path)

    assert done.returncode == 2
    assert "nothing could be read from 1 stacks files" in done.stderr


def test_a_paste_of_processes_that_name_no_rank_says_how_to_name_them(tmp_path: Path) -> None:
    stack = 'Thread 1 (idle): "MainThread"\n    read_shard (/w/data.py:3)\n'
    processes = (f"Process {pid}: python train.py\nPython v3.11.7 (/usr/bin/python3)\n\n{stack}" for pid in (7, 8))
    (tmp_path / "all.txt").write_text("\n".join(processes))

    done = distdiag("analyze", tmp_path)

    assert done.returncode == 2
    assert "nothing tells the rank of 2 stacks (process 7, 8): name files rank0.txt" in done.stderr
    assert "are they whole" not in done.stderr
