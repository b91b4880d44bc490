"""How a process ends, as far as it can still say so; and children, which must not speak for their parent."""

import signal
from pathlib import Path

import pytest

from distdiag import events
from tests.ranks import Ended, launch
from tests.recordings import read_logs

HANGS_SECONDS = 90.0
"""No program here runs as long."""


def run(program: str, directory: Path, **variables: str) -> Ended:
    """Run a program of one process that records itself."""
    recorded = "import distdiag\ndistdiag.install()\n" + program
    (ended,) = launch(recorded, directory, world_size=1, variables=variables, cap_seconds=HANGS_SECONDS)
    return ended


def said(ended: Ended) -> list[tuple[str | None, int | None]]:
    """Return where and with which code a process said that it ends."""
    return [(each.where, each.code) for each in ended.log.faults("exit")]


ORDERLY = {"": None, "import sys; sys.exit(0)": 0, "import threading; threading.Thread().start()": None}


@pytest.mark.parametrize("program", ORDERLY)
def test_orderly_end_is_recorded_as_the_last_word(program: str, tmp_path: Path) -> None:
    ended = run(program, tmp_path)

    assert ended.code == 0
    assert said(ended) == [("interpreter", ORDERLY[program])]
    assert isinstance(ended.log.records[-1], events.Fault)
    assert ended.crash == ""
    assert list((tmp_path / "logs").iterdir()) == [tmp_path / "logs" / "rank00000.jsonl"]


def test_uninstall_is_told_from_the_end_of_the_process(tmp_path: Path) -> None:
    ended = run("distdiag.uninstall()", tmp_path)

    assert said(ended) == [("uninstall", None)]


FAILURES = """
import sys

def read():
    raise OSError("no such shard")  # LINE raised

try:
    read()
except OSError:
    sys.exit("giving up")  # LINE left
"""


def test_exit_is_recorded_with_its_code_its_line_and_the_exception_that_was_handled(tmp_path: Path) -> None:
    ended = run(FAILURES, tmp_path)

    (fault,) = ended.log.faults("exit")
    assert ended.code == 1
    assert (fault.where, fault.code, fault.message) == ("interpreter", 1, "giving up")
    assert fault.frames == [f"{ended.line('left')} <module>"]
    assert fault.causes == ["OSError: no such shard"]
    assert fault.origins == [f"{ended.line('raised')} read"]


WENT_ON = """
import sys
try:
    sys.exit(3)
except SystemExit:
    distdiag.step()
"""
IN_THREAD = (
    "import sys, threading\nthread = threading.Thread(target=sys.exit, args=(3,))\nthread.start(); thread.join()"
)


@pytest.mark.parametrize("program", [WENT_ON, IN_THREAD])
def test_exit_that_did_not_end_the_process_is_not_recorded(program: str, tmp_path: Path) -> None:
    ended = run(program, tmp_path)

    assert ended.code == 0
    assert said(ended) == [("interpreter", None)]


def test_interruption_is_told_from_an_orderly_end(tmp_path: Path) -> None:
    ended = run("import signal\nsignal.raise_signal(signal.SIGINT)  # LINE here", tmp_path)

    (fault,) = ended.log.faults("exit")
    assert ended.code == -signal.SIGINT
    assert (fault.where, fault.type) == ("interpreter", "KeyboardInterrupt")
    assert fault.frames == [f"{ended.line('here')} <module>"]


def test_hard_exit_is_recorded_with_its_code(tmp_path: Path) -> None:
    ended = run("import os; os._exit(7)", tmp_path)

    assert ended.code == 7
    assert said(ended) == [("os._exit", 7)]


SIGNALS = {
    "import os; os.abort()": (signal.SIGABRT, "Fatal Python error: Aborted"),
    "import ctypes; ctypes.string_at(0)": (signal.SIGSEGV, "Fatal Python error: Segmentation fault"),
    "import os; os.kill(os.getpid(), 7)": (signal.SIGBUS, "Fatal Python error: Bus error"),
}


@pytest.mark.parametrize("program", SIGNALS)
def test_fatal_signal_leaves_its_name_and_the_stack(program: str, tmp_path: Path) -> None:
    number, text = SIGNALS[program]

    ended = run(program, tmp_path)

    assert ended.code == -number
    assert said(ended) == []
    assert text in ended.crash
    assert f'File "{ended.script}", line 3 in <module>' in ended.crash


def test_survivor_that_is_told_to_stop_leaves_a_mark(tmp_path: Path) -> None:
    ended = run("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)", tmp_path)

    assert ended.code == -signal.SIGTERM
    assert said(ended) == []
    assert "most recent call first" in ended.crash


def test_handler_of_the_user_runs_after_the_mark(tmp_path: Path) -> None:
    ended = run(
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('{\"stopped\": true}'))\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n",
        tmp_path,
    )

    assert ended.code == 0
    assert ended.told == {"stopped": True}
    assert said(ended) == [("interpreter", None)]
    assert "most recent call first" in ended.crash


def test_killed_process_says_nothing(tmp_path: Path) -> None:
    ended = run("import os; os.kill(os.getpid(), 9)", tmp_path)

    assert ended.code == -signal.SIGKILL
    assert said(ended) == []
    assert ended.crash == ""
    assert ended.log.of(events.Header)


def test_faulthandler_that_the_user_enabled_is_left_alone(tmp_path: Path) -> None:
    ended = run("import ctypes; ctypes.string_at(0)", tmp_path, PYTHONFAULTHANDLER="1")

    assert "Fatal Python error: Segmentation fault" in ended.stderr
    assert "Fatal Python error" not in ended.crash


def test_faulthandler_that_the_user_enabled_is_still_enabled_afterwards(tmp_path: Path) -> None:
    ended = run(
        "import faulthandler\ndistdiag.uninstall()\nprint(int(faulthandler.is_enabled()))",
        tmp_path,
        PYTHONFAULTHANDLER="1",
    )

    assert ended.stdout == "1\n"


def test_crash_is_found_beside_the_log_also_where_the_rank_was_learned_late(tmp_path: Path) -> None:
    (ended,) = launch(
        """
        import os, signal, torch.distributed as dist, distdiag
        distdiag.install()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        os.kill(os.getpid(), signal.SIGSEGV)
        """,
        tmp_path,
        world_size=1,
        ranked=False,
    )

    assert sorted(each.name for each in (tmp_path / "logs").iterdir()) == ["rank00000.crash.txt", "rank00000.jsonl"]
    assert "Segmentation fault" in ended.crash


# ---- children ----------------------------------------------------------------------------------------------------
FORKED = """
import json, os, signal, sys, time
time.sleep(0.1)  # until the pulse has set its timer
children = []
for end in (
    lambda: sys.exit(3),
    lambda: os._exit(4),
    lambda: os.kill(os.getpid(), signal.SIGSEGV),
    lambda: os.kill(os.getpid(), signal.SIGTERM),
    lambda: distdiag.step(loss=1.0),
    lambda: distdiag.uninstall(),
):
    child = os.fork()
    if not child:
        end()
        sys.exit(0)
    children.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
distdiag.step(loss=2.0)
print(json.dumps(children))
"""


def test_forked_children_write_nothing_for_their_parent(tmp_path: Path) -> None:
    ended = run(FORKED, tmp_path, DISTDIAG_PULSE_SECONDS="0.01")

    assert ended.stdout.strip() == "[3, 4, -11, -15, 0, 0]", ended.stderr
    assert said(ended) == [("interpreter", None)]
    assert [each.facts for each in ended.log.of(events.Step)] == [{"loss": 2.0}]
    assert ended.crash == ""
    assert len(read_logs(tmp_path / "logs")) == 1


def test_forked_child_can_record_itself(tmp_path: Path) -> None:
    (ended,) = launch(
        """
        import os, sys, time, torch, torch.distributed as dist, distdiag
        distdiag.install()
        time.sleep(0.1)  # until the pulse has set its timer
        child = os.fork()
        if not child:
            os.environ["RANK"] = "1"
            distdiag.install()
        store = dist.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        dist.all_reduce(torch.ones(2))
        torch.nn.Linear(1, 1)(torch.ones(1)).sum().backward()
        distdiag.step()
        if child:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        time.sleep(0.1)
        """,
        tmp_path,
        world_size=1,
        variables={"DISTDIAG_PULSE_SECONDS": "0.01", "PYTHONWARNINGS": "default"},
    )

    assert ended.code == 0, ended.stderr
    assert ended.stderr == ""
    logs = read_logs(tmp_path / "logs")
    assert sorted(logs) == ["rank00000", "rank00001"]
    for log in logs.values():
        assert [each.op for each in log.issued()] == ["all_reduce"]
        assert log.the_call().done is not None
        assert [(each.step, each.backwards) for each in log.of(events.Step)] == [(0, 1)]
        assert [each.where for each in log.faults("exit")] == ["interpreter"]


SPAWNED = """
import os
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import distdiag

def train(rank, lost):
    distdiag.install()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=rank, world_size=1)
    dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()
    if lost:
        raise KeyError("shard")  # LINE lost

if __name__ == "__main__":
    lost = bool(os.environ["LOST"])
    multiprocessing.start_processes(train, args=(lost,), nprocs=1, start_method=os.environ["METHOD"])
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.parametrize("lost", ["", "yes"], ids=["healthy", "lost"])
def test_rank_that_another_process_starts_ends_as_it_does(method: str, lost: str, tmp_path: Path) -> None:
    (parent,) = launch(SPAWNED, tmp_path, world_size=1, ranked=False, variables={"METHOD": method, "LOST": lost})

    assert parent.code == (1 if lost else 0), parent.stderr
    ((name, log),) = read_logs(tmp_path / "logs").items()
    assert name == "rank00000"
    assert [each.op for each in log.issued()] == ["all_reduce"]
    faults = [(each.fault, each.type, each.where) for each in log.faults("exception", "exit")]
    assert faults == [("exception", "KeyError", "uncaught")] * bool(lost) + [("exit", None, "interpreter")]
    if lost:
        assert log.faults("exception")[0].frames == [f"{parent.line('lost')} train"]


PLAIN_CHILD = """
import multiprocessing, sys
import distdiag

def work(end):
    distdiag.install()
    if end == "raise":
        raise KeyError("shard")
    if end == "exit":
        sys.exit(0)

for end in ("raise", "exit", "return"):
    child = multiprocessing.get_context("fork").Process(target=work, args=(end,))
    child.start()
    child.join()
    print(child.exitcode)
"""


def test_children_of_multiprocessing_end_as_they_do(tmp_path: Path) -> None:
    (parent,) = launch(PLAIN_CHILD, tmp_path, world_size=1)

    assert parent.stdout == "1\n0\n0\n"
    ends = [
        [(each.fault, each.type) for each in log.faults("exception", "exit")]
        for log in read_logs(tmp_path / "logs").values()
    ]
    assert ends == [[("exception", "KeyError"), ("exit", None)], [("exit", None)], [("exit", None)]]
