"""Errors as libraries hand them on: raised from another one, or on all ranks because of one of them."""

from pathlib import Path

from distdiag.analyzers import diagnose
from distdiag.findings import Verdict
from distdiag.run import load
from tests.logs import Logs

STEP = ("train.py:9 main", "train.py:20 step")
SAVE = ("train.py:9 main", "train.py:30 save")
DIFFERENT = (
    "DDP expects same model across all ranks, but Rank {} has {} params, while rank {} has inconsistent {} params."
)
RESET = "RuntimeError: Connection closed by peer [127.0.0.1]:4242"


def verdict(logs: Logs, directory: Path) -> Verdict:
    logs.write(directory)
    return diagnose(load(directory)).verdict


def one_raises(kind: str, message: str, causes: list[str], origins: list[str], direct: int) -> Logs:
    """Return the logs of three ranks of which the last raises."""
    logs = Logs(3)
    for rank in logs:
        rank.all_reduce(STEP)
    for rank in logs.only(0, 1):
        rank.done(rank.all_reduce(STEP, pending=True), seconds=2.0, error=RESET)
        rank.fault("RuntimeError", RESET, STEP).exit(1)
    logs[2].fault(kind, message, SAVE, causes=causes, origins=origins, direct_causes=direct).exit(1)
    return logs


def test_an_error_that_was_raised_from_another_is_that_one_where_it_was_raised(tmp_path: Path) -> None:
    message = "\n[Stage 2] failed to run forward:\nargs: ()"
    logs = one_raises("RuntimeError", message, ["IndexError: token 50257"], ["model.py:7 forward"], 1)

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits, found.site) == ("rank-died", (2,), "model.py:7")
    assert "rank 2 raised IndexError: token 50257" in found.summary
    assert "it came to the top as RuntimeError: [Stage 2] failed to run forward" in found.evidence


def test_an_error_that_came_up_while_another_was_handled_is_its_own(tmp_path: Path) -> None:
    logs = one_raises("ValueError", "bad shape", ["KeyError: 'cache'"], ["cache.py:3 get"], 0)

    found = verdict(logs, tmp_path)

    assert (found.site, found.culprits) == ("train.py:30", (2,))
    assert "rank 2 raised ValueError: bad shape" in found.summary


def test_a_cause_that_says_nothing_lends_its_line_alone(tmp_path: Path) -> None:
    logs = one_raises("RuntimeError", "generator raised StopIteration", ["StopIteration: "], ["data.py:7 pack"], 1)

    found = verdict(logs, tmp_path)

    assert found.site == "data.py:7"
    assert "rank 2 raised RuntimeError: generator raised StopIteration" in found.summary


def all_raise(kind: str, *messages: str) -> Logs:
    logs = Logs(len(messages))
    for rank, message in zip(logs, messages, strict=True):
        rank.all_reduce(STEP)
        rank.fault(kind, message, SAVE).exit(1)
    return logs


def test_a_checkpoint_that_failed_on_one_rank_is_that_rank_s_error(tmp_path: Path) -> None:
    message = (
        "CheckpointException ranks:dict_keys([2])\nTraceback (most recent call last): (RANK 2)\n"
        '  File "/venv/lib/python3.11/site-packages/torch/distributed/checkpoint/utils.py", line 241, in all_reduce\n'
        "    local_data = map_fun()\n"
        '  File "/home/me/quota.py", line 12, in write_data\n    raise OSError(28)\n'
        "OSError: [Errno 28] No space left on device\n"
    )

    found = verdict(all_raise("CheckpointException", *[message] * 3), tmp_path)

    assert (found.name, found.culprits, found.victims) == ("rank-died", (2,), (0, 1))
    assert found.site == "/home/me/quota.py:12"
    assert "rank 2 raised OSError: [Errno 28] No space left on device" in found.summary


def test_frames_of_recording_and_of_libraries_are_nobody_s_line(tmp_path: Path) -> None:
    message = (
        "CheckpointException ranks:dict_keys([1])\nTraceback (most recent call last): (RANK 1)\n"
        '  File "/venv/lib/python3.11/site-packages/torch/distributed/checkpoint/utils.py", line 281, in all_gather\n'
        '  File "/src/distdiag/hooks/_patch.py", line 44, in observed\n    result = original(*args, **kwargs)\n'
        '  File "/venv/lib/python3.11/site-packages/fsspec/local.py", line 9, in open\n    return io.open(path)\n'
        "FileNotFoundError: [Errno 2] No such file or directory: 'ck/__1_0.distcp'\n"
    )

    found = verdict(all_raise("CheckpointException", *[message] * 3), tmp_path)

    assert (found.culprits, found.site) == ((1,), "train.py:30")


def test_a_checkpoint_that_failed_everywhere_is_nobody_s(tmp_path: Path) -> None:
    message = "CheckpointException ranks:dict_keys([0, 1, 2])\n"

    found = verdict(all_raise("CheckpointException", *[message] * 3), tmp_path)

    assert (found.name, found.culprits) == ("rank-died", ())


def test_the_rank_whose_model_has_other_parameters_is_the_odd_one_of_all_that_complain(tmp_path: Path) -> None:
    said = DIFFERENT
    logs = all_raise("RuntimeError", said.format(0, 16, 1, 22), said.format(1, 22, 0, 16), said.format(2, 16, 1, 22))

    found = verdict(logs, tmp_path)

    assert (found.name, found.culprits) == ("rank-died", (1,))
    assert "rank 1 has 22 parameters, 2 ranks have 16" in found.evidence


def test_of_two_ranks_with_different_models_none_is_odd(tmp_path: Path) -> None:
    said = DIFFERENT

    found = verdict(all_raise("RuntimeError", said.format(0, 16, 1, 22), said.format(1, 22, 0, 16)), tmp_path)

    assert (found.name, found.culprits) == ("rank-died", ())
