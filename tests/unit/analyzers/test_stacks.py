"""Stacks of all ranks become one tree whose frames know their ranks."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from distdiag import events
from distdiag.analyzers.summary.stacks import MOST_FOREIGN, Sample, merged, stacks_of
from distdiag.findings import StackBranch
from tests.logs import Logs

MAIN = "/job/train.py:210 main"
STEP = "/job/train.py:88 step"
LOAD = "/job/dataset.py:31 read_shard"
CALL = "torch/distributed/distributed_c10d.py:4287 all_reduce"
WRAPPER = "torch/distributed/c10d_logger.py:83 wrapper"


def sample(rank: int, *frames: str, thread: str = "MainThread") -> Sample:
    return Sample(rank=rank, thread=thread, frames=frames)


def shape(branches: tuple[StackBranch, ...]) -> list[tuple[int, str, tuple[int, ...]]]:
    return [(branch.depth, branch.function, branch.ranks) for branch in branches]


def test_the_tree_forks_where_the_ranks_part_and_the_most_come_first() -> None:
    branches = merged(
        [sample(0, MAIN, STEP, WRAPPER, CALL), sample(1, MAIN, LOAD), sample(2, MAIN, STEP, WRAPPER, CALL)]
    )

    assert shape(branches) == [
        (0, "main", (0, 1, 2)),
        (1, "step", (0, 2)),
        (2, "all_reduce", (0, 2)),
        (1, "read_shard", (1,)),
    ]


def test_lines_inside_a_function_do_not_part_ranks() -> None:
    (branch,) = merged([sample(0, "/job/train.py:3 main"), sample(1, "/job/train.py:9 main")])

    assert branch.ranks == (0, 1)
    assert branch.lines == (3, 9)


def test_equal_functions_of_two_files_part_ranks() -> None:
    assert len(merged([sample(0, "/job/a.py:3 main"), sample(1, "/job/b.py:3 main")])) == 2


def test_where_the_files_lie_on_each_host_does_not_part_ranks() -> None:
    assert len(merged([sample(0, "/home/a/train.py:3 main"), sample(1, "/home/b/train.py:3 main")])) == 1


def test_threads_of_a_pool_are_one_whatever_their_numbers() -> None:
    branches = merged([sample(rank, MAIN, thread=f"Thread-{rank} (work)") for rank in range(3)])

    assert [(branch.thread, branch.ranks) for branch in branches] == [("Thread-# (work)", (0, 1, 2))]


def test_idle_threads_of_libraries_are_left_out() -> None:
    idle = sample(0, "/usr/lib/python3.11/threading.py:995 run", "torch/utils/x.py:3 wait", thread="Thread-1")

    assert not merged([idle])


def test_a_main_thread_without_any_frame_of_the_users_shows_its_innermost() -> None:
    native = [f"libc.so.6:0 f{number}" for number in range(9)]

    branches = merged([sample(0, "libc.so.6:0 0x7fab56", *native)])

    assert [branch.function for branch in branches] == [f"f{number}" for number in range(9 - MOST_FOREIGN, 9)]


def test_of_frames_below_the_users_the_collective_is_shown_or_the_innermost() -> None:
    collective = merged([sample(0, MAIN, WRAPPER, CALL, "libtorch_cpu.so:0 c10d::wait")])
    reading = merged([sample(0, LOAD, "libpython3.11.so.1.0:0 _io_read", "libc.so.6:0 read")])

    assert [branch.function for branch in collective] == ["main", "all_reduce"]
    assert [branch.function for branch in reading] == ["read_shard", "read"]


FRAMES = st.lists(st.sampled_from([MAIN, STEP, LOAD, WRAPPER, CALL]), min_size=1, max_size=5)


@settings(max_examples=50, deadline=None)
@given(stacks=st.lists(FRAMES, min_size=1, max_size=6), data=st.data())
def test_relabelling_ranks_relabels_the_tree(stacks: list[list[str]], data: st.DataObject) -> None:
    labels = data.draw(st.permutations(range(len(stacks))))

    straight = merged(sample(rank, *frames) for rank, frames in enumerate(stacks))
    relabelled = merged(sample(labels[rank], *frames) for rank, frames in enumerate(stacks))

    assert {(b.depth, b.function, tuple(sorted(labels[rank] for rank in b.ranks))) for b in straight} == {
        (b.depth, b.function, b.ranks) for b in relabelled
    }


@settings(max_examples=50, deadline=None)
@given(stacks=st.lists(FRAMES, min_size=1, max_size=6))
def test_a_frame_has_no_rank_that_its_caller_has_not(stacks: list[list[str]]) -> None:
    path: list[StackBranch] = []
    for branch in merged(sample(rank, *frames) for rank, frames in enumerate(stacks)):
        del path[branch.depth :]
        assert not path or set(branch.ranks) <= set(path[-1].ranks)
        path.append(branch)


def test_the_newest_stack_of_each_rank_is_taken(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    for rank in logs:
        for seconds, frame in ((1.0, LOAD), (2.0, STEP)):
            rank.at(seconds)
            threads = [events.ThreadStack(thread="MainThread", frames=[MAIN, frame])]
            rank.add(events.Stack(time_ns=rank.now_ns, reason="stall", source="py-spy", threads=threads))

    branches = stacks_of(logs.load(tmp_path))

    assert shape(branches) == [(0, "main", (0, 1)), (1, "step", (0, 1))]


def test_runs_without_stacks_have_no_tree(tmp_path: Path) -> None:
    assert stacks_of(Logs(world_size=2).load(tmp_path)) == ()
