"""What stands around a message is taken off, and the message stays as it was."""

import pytest

from distdiag.importers._text.normalise import Line, bars_in, clean, normalise


def lines_of(raw: str) -> list[Line]:
    return list(normalise(1, clean(raw.encode())))


def only(raw: str) -> Line:
    (line,) = lines_of(raw)
    return line


@pytest.mark.parametrize(
    ("raw", "rank"),
    [
        ("[rank3]: RuntimeError: x", 3),
        ("[rank3]:[E1206 18:40:00.100000001 ProcessGroupNCCL.cpp:607] RuntimeError: x", 3),
        ("[rank1]:[E ProcessGroupNCCL.cpp:563] RuntimeError: x", 1),
        ("[default2]:[rank10]: RuntimeError: x", 10),
        ("[1,5]<stderr>:RuntimeError: x", 5),
        ("[1,mpirank:5,algo-1]<stderr>:RuntimeError: x", 5),
        ("(WorkerDict pid=4711) [rank3]: RuntimeError: x", 3),
        ("(RayTrainWorker pid=4711, ip=10.0.0.2) [rank3]: RuntimeError: x", 3),
        ("  | 2024-08-23T22:22:51.874Z | [rank5]: RuntimeError: x", 5),
        ("2024-08-23T22:22:51.874123456Z stderr F [rank5]: RuntimeError: x", 5),
        ("worker-1: [rank9]: RuntimeError: x", 9),
        ("trainer_1  | [rank2]: RuntimeError: x", 2),
        ("> > [rank2]: RuntimeError: x", 2),
        ("[80746] [rank4]: RuntimeError: x", 4),
        (" 3: [rank7]: RuntimeError: x", 7),
        ("\x1b[31m[rank7]:\x1b[0m RuntimeError: x", 7),
        ("[rank0]: [rank0]:[E1129 13:13:25.891059783 ProcessGroupGloo.cpp:67] RuntimeError: x", 0),
    ],
)
def test_prefixes_go_and_the_rank_is_kept(raw: str, rank: int) -> None:
    line = only(raw)

    assert line.rank == rank
    assert line.text.strip() == "RuntimeError: x"


@pytest.mark.parametrize(
    "raw",
    [
        "RuntimeError: [/pytorch/third_party/gloo/unbound_buffer.cc:78] Timed out",
        "torch.distributed.distributed_c10d.DistStoreError: [7] is setting up NCCL communicator",
        "[7] is setting up NCCL communicator and retrieving ncclUniqueId from [0]",
        '  File "train.py", line 3, in main',
    ],
)
def test_what_only_looks_like_a_prefix_stays(raw: str) -> None:
    assert only(raw).text == raw


def test_a_launchers_local_rank_and_a_tasks_number_are_told_apart() -> None:
    assert only("[default2]:RuntimeError: x").local_rank == 2
    assert only("2: RuntimeError: x").task == 2
    assert only("(Worker pid=17) x").pid == 17


def test_indentation_of_a_traceback_survives_its_prefix() -> None:
    assert only('[rank0]:   File "a.py", line 1, in main').text == '  File "a.py", line 1, in main'


def test_messages_glued_to_a_bar_and_to_one_another_are_told_apart() -> None:
    raw = (
        "Running tokenizer:  9%|▉ | 12/100 [00:01<00:02]"
        "[rank1]:[E ProcessGroupNCCL.cpp:737] first[rank2]:[E306 01:02:03.4 ProcessGroupNCCL.cpp:737] second"
    )

    front, first, second = lines_of(raw)

    assert front.text.startswith("Running tokenizer")
    assert (first.rank, first.text) == (1, "first")
    assert (second.rank, second.text) == (2, "second")


def test_a_traceback_behind_a_bar_is_found() -> None:
    assert lines_of(" 45%|███ | 3/7Traceback (most recent call last):")[-1].text == "Traceback (most recent call last):"


def test_carriage_returns_separate_what_was_drawn_over() -> None:
    assert [line.text for line in lines_of("10%|\r20%|\rdone\r")] == ["10%|", "20%|", "done"]


@pytest.mark.parametrize(("day", "expected"), [("626", (6, 26)), ("306", (3, 6)), ("1206", (12, 6)), ("0823", (8, 23))])
def test_the_month_of_a_glog_moment_is_not_padded(day: str, expected: tuple[int, int]) -> None:
    stamp = only(f"[rank0]:[E{day} 18:40:00.100000001 ProcessGroupNCCL.cpp:607] x").stamp

    assert stamp is not None
    assert (stamp.month, stamp.day) == expected
    assert stamp.second_of_day == 18 * 3600 + 40 * 60
    assert stamp.nanosecond == 100000001


def test_the_moment_of_a_collector_is_that_of_the_line() -> None:
    stamp = only("  | 2024-08-23T22:22:51.874Z | [rank5]: x").stamp

    assert stamp is not None
    assert (stamp.year, stamp.month, stamp.day, stamp.nanosecond) == (2024, 8, 23, 874_000_000)


def test_the_last_bar_of_a_line_has_its_label_and_percentage() -> None:
    bars = list(bars_in(1, "Map:   8%|▊ | 8/100\rMap:   9%|▉ | 9/100 [00:01<00:02]"))

    assert [(bar.label, bar.percent) for bar in bars] == [("Map", 8), ("Map", 9)]


def test_a_bar_without_a_label_tells_nothing() -> None:
    assert not list(bars_in(1, " 45%|███ | 3/7"))
