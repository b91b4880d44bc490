"""Merged stacks read as a picture: frames of the same ranks in one line, forks further in."""

from distdiag.findings import StackBranch
from distdiag.reporters._lines import plain
from distdiag.reporters._stacks import stack_lines


def branch(depth: int, function: str, ranks: tuple[int, ...], *lines: int, thread: str = "MainThread") -> StackBranch:
    return StackBranch(
        depth=depth, thread=thread, function=function, file="/job/train.py", lines=lines or (1,), ranks=ranks
    )


def drawn(*branches: StackBranch, width: int = 100, most: int = 24) -> list[str]:
    return [plain(line) for line in stack_lines(branches, width, most)]


def test_forks_stand_further_in_than_what_they_fork_from() -> None:
    everybody, most = (0, 1, 2, 3), (0, 1, 3)

    lines = drawn(
        branch(0, "main", everybody, 210),
        branch(1, "train", everybody, 40),
        branch(2, "step", most, 88),
        branch(3, "all_reduce", most, 4287),
        branch(2, "read_shard", (2,), 31),
    )

    assert lines == [
        "Stacks of the main thread",
        "  0-3      main (train.py:210) > train (train.py:40)",
        "    0-1,3  step (train.py:88) > all_reduce (train.py:4287)",
        "    2      read_shard (train.py:31)",
    ]


def test_places_side_by_side_stand_equally_far_in() -> None:
    lines = drawn(branch(0, "one", (0,)), branch(1, "deeper", (0,)), branch(0, "two", (1,)))

    assert [len(line) - len(line.lstrip()) for line in lines[1:]] == [2, 2]


def test_every_thread_has_a_heading() -> None:
    lines = drawn(branch(0, "main", (0,)), branch(0, "work", (0,), thread="Thread-# (bg)"))

    assert lines[0] == "Stacks of the main thread"
    assert "Stacks of thread Thread-# (bg)" in lines


def test_several_lines_of_one_function_are_listed_and_cut() -> None:
    assert drawn(branch(0, "main", (0,), 3, 5, 7, 9))[1] == "  0  main (train.py:3,5,7…)"


def test_too_many_places_are_counted() -> None:
    lines = drawn(*(branch(0, f"f{number}", (number,)) for number in range(9)), most=3)

    assert lines[-1] == "  and 6 more places of ranks"


def test_long_lines_are_wrapped_within_the_width() -> None:
    lines = drawn(*(branch(depth, f"function_{depth}", (0,)) for depth in range(12)), width=60)

    assert max(map(len, lines)) <= 60
    assert len(lines) > 3


def test_nothing_is_drawn_of_nothing() -> None:
    assert drawn() == []
