"""Whatever lies in the folder, the answer is a report or one line with a hint: never a traceback."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commandline import distdiag

SAMPLE = Path(__file__).parents[2] / "sample_logs" / "data-loader-stuck"
OTHER = SAMPLE.with_name("healthy")


def analyze(logs: Path) -> subprocess.CompletedProcess[str]:
    return distdiag("analyze", logs, "--format", "json")


def sample(directory: Path) -> Path:
    shutil.copytree(SAMPLE, directory, dirs_exist_ok=True)
    return directory


def nothing(directory: Path) -> None:
    shutil.rmtree(directory)


def empty(directory: Path) -> None:
    for each in directory.iterdir():
        each.unlink()


def empty_files(directory: Path) -> None:
    for each in directory.iterdir():
        each.write_bytes(b"")


def junk(directory: Path) -> None:
    for each in directory.glob("*.jsonl"):
        each.write_bytes(os.urandom(5000))


def future(directory: Path) -> None:
    for each in directory.glob("*.jsonl"):
        each.write_text(each.read_text().replace('"distdiag.log/1"', '"distdiag.log/99"'))


def no_headers(directory: Path) -> None:
    for each in directory.glob("*.jsonl"):
        each.write_text(each.read_text().partition("\n")[2])


def something_else(directory: Path) -> None:
    for each in directory.glob("*.jsonl"):
        each.write_text('{"level": "info", "message": "epoch 3"}\n[1, 2]\nnull\n')


@pytest.mark.parametrize("spoil", [nothing, empty, empty_files, junk, future, something_else])
def test_what_cannot_be_analysed_is_one_line_and_a_hint(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    logs = sample(tmp_path / "logs")
    spoil(logs)

    done = analyze(logs)

    assert done.returncode == 2, done.stdout + done.stderr
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
    assert done.stdout == ""


def test_folder_that_is_a_file_of_another_kind_is_one_line_and_a_hint() -> None:
    done = analyze(Path(__file__))

    assert done.returncode == 2
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["error", "hint"]


def cut(directory: Path) -> None:
    log = directory / "rank00002.jsonl"
    log.write_bytes(log.read_bytes()[:-100])


def cut_in_the_middle(directory: Path) -> None:
    log = directory / "rank00001.jsonl"
    content = log.read_bytes()
    log.write_bytes(content[:4000] + content[4500:])


def one_rank_missing(directory: Path) -> None:
    (directory / "rank00003.jsonl").unlink()


def one_empty_file(directory: Path) -> None:
    (directory / "rank00003.jsonl").write_bytes(b"")


def one_file_of_junk(directory: Path) -> None:
    (directory / "rank00003.jsonl").write_bytes(os.urandom(5000))


def another_run(directory: Path) -> None:
    shutil.copy(OTHER / "rank00001.jsonl", directory / "rank00001.jsonl")


@pytest.mark.parametrize(
    "spoil", [cut, cut_in_the_middle, one_rank_missing, one_empty_file, one_file_of_junk, another_run, no_headers]
)
def test_what_is_damaged_in_part_is_reported_or_refused_with_a_hint(
    spoil: Callable[[Path], None], tmp_path: Path
) -> None:
    logs = sample(tmp_path / "logs")
    spoil(logs)

    done = analyze(logs)

    assert "Traceback" not in done.stderr
    if done.returncode == 2:
        assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["error", "hint"]
    else:
        report = json.loads(done.stdout)
        found = [report["verdict"]["code"], *(finding["code"] for finding in report["findings"])]
        assert spoil is cut or any(code.startswith("DD1") for code in found), found
