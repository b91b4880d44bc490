"""Folders and files in which there is nothing to watch."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.commandline import distdiag
from tests.logs import Logs


def test_a_folder_of_runs_names_where_the_logs_are(tmp_path: Path) -> None:
    for name in ("one", "two"):
        Logs(world_size=2).write(tmp_path / name)

    done = distdiag("watch", "--once", tmp_path)

    assert (done.returncode, done.stdout) == (2, "")
    assert f"no logs in {tmp_path} itself, but in 2 of its folders: {tmp_path}/one, {tmp_path}/two" in done.stderr
    assert f"watch one of them: distdiag watch {tmp_path}/" in done.stderr


@pytest.mark.parametrize("names", [("train.log",), ("nccl_trace_rank_0", "nccl_trace_rank_1")])
def test_files_that_recording_did_not_write_are_to_be_analysed(names: tuple[str, ...], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_text("x")

    done = distdiag("watch", "--once", tmp_path)

    assert done.returncode == 2
    assert f"nothing in {tmp_path} is a log that recording writes: {', '.join(names)}" in done.stderr
    assert f"distdiag analyze {tmp_path}" in done.stderr


def test_a_file_is_not_watched(tmp_path: Path) -> None:
    log = Logs(world_size=1).write(tmp_path) / "rank00000.jsonl"

    done = distdiag("watch", "--once", log)

    assert done.returncode == 2
    assert f"{log} is a file" in done.stderr


@pytest.mark.parametrize("folder", ["empty", "logs"])
def test_an_empty_folder_and_one_of_logs_may_be_watched(folder: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    Logs(world_size=1).write(tmp_path / "logs")

    assert distdiag("watch", "--once", "--no-verdict", tmp_path / folder).returncode != 2


def test_a_watch_that_goes_on_says_so_once_and_waits(tmp_path: Path) -> None:
    Logs(world_size=1).write(tmp_path / "old")
    watching = subprocess.Popen(
        [sys.executable, "-m", "distdiag", "watch", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with watching:
        assert watching.stderr is not None
        said = watching.stderr.readline()
        alive = watching.poll() is None
        watching.kill()

    assert f"distdiag: no logs in {tmp_path} itself, but in 1 of its folders" in said
    assert alive
