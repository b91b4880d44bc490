"""Checkpoints that are saved and loaded, and the hashes that a save leaves."""

import importlib
import io
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint
from torch.distributed.checkpoint import filesystem, state_dict_loader, state_dict_saver
from torch.utils.data import DataLoader, Dataset

import distdiag
from distdiag import events
from distdiag.checkpoints import verify
from distdiag.checkpoints.records import FOLDER, read_records
from distdiag.errors import RAISE_OWN_ERRORS
from distdiag.hooks._saving import MOST_PER_STEP
from tests.recordings import Recording, lonely_world, recording

dcp: Any = torch.distributed.checkpoint
STATE = {"weight": torch.arange(100_000.0), "step": 3}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Torch warns of what it does with a group of one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def edges(recorded: Recording, name: str) -> tuple[events.Phase, events.Phase]:
    begun, ended = recorded.log.phases(name)
    assert (begun.edge, ended.edge, begun.number) == ("begin", "end", ended.number)
    return begun, ended


def test_sharded_save_is_a_phase_with_bytes_and_hashes(alone: Recording, tmp_path: Path) -> None:
    directory = tmp_path / "step-3"

    dcp.save(STATE, checkpoint_id=directory)

    begun, ended = edges(alone, "checkpoint save")
    assert (begun.format, begun.directory) == ("sharded", str(directory))
    assert ended.bytes == (directory / "__0_0.distcp").stat().st_size
    assert sorted(ended.files) == [".metadata", "__0_0.distcp"]
    assert ended.time_ns > begun.time_ns
    assert not ended.failed
    assert verify(directory).facts.hashed == "all"


def test_hash_record_tells_rank_and_step_of_the_save(alone: Recording, tmp_path: Path) -> None:
    distdiag.step()
    distdiag.step()

    dcp.save(STATE, checkpoint_id=tmp_path / "saved")

    records, damaged = read_records(tmp_path / "saved")
    assert not damaged
    assert {record.step for record in records.values()} == {2}
    assert records[".metadata"].save_id is not None


def test_asynchronous_save_is_staged_here_and_uploaded_by_its_thread(alone: Recording, tmp_path: Path) -> None:
    directory = tmp_path / "saved"

    future = dcp.async_save(STATE, checkpoint_id=directory)
    distdiag.step()
    future.result()

    assert edges(alone, "checkpoint stage")[0].thread == "MainThread"
    begun, ended = edges(alone, "checkpoint upload")
    assert begun.thread != "MainThread"
    assert ended.bytes
    assert {record.step for record in read_records(directory)[0].values()} == {0}


def test_sharded_load_tells_what_it_read(alone: Recording, tmp_path: Path) -> None:
    dcp.save(STATE, checkpoint_id=tmp_path / "saved")

    dcp.load({"weight": torch.empty(100_000)}, checkpoint_id=tmp_path / "saved")

    _, ended = edges(alone, "checkpoint load")
    assert ended.bytes is not None
    assert 400_000 < ended.bytes < 402_000


def test_save_that_fails_ends_as_failed_and_still_raises(alone: Recording, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(dcp.api.CheckpointException, match="Not a directory"):
        dcp.save(STATE, checkpoint_id=tmp_path / "file" / "saved")

    assert edges(alone, "checkpoint save")[1].failed


@pytest.mark.parametrize("opened", [False, True])
def test_torch_save_of_a_file_is_a_phase(opened: bool, recorded: Recording, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"

    if opened:
        with path.open("wb") as file:
            torch.save(STATE, file)
    else:
        torch.save(STATE, path)

    _, ended = edges(recorded, "checkpoint save")
    assert (ended.format, ended.directory) == ("torch", str(path))
    # What Python still holds back in the buffer of an open file cannot be measured.
    assert ended.bytes == (None if opened else path.stat().st_size)
    assert list(ended.files) == ([] if opened else [path.name])
    assert not (tmp_path / FOLDER).exists()


def test_torch_load_of_a_file_is_a_phase(recorded: Recording, tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "model.pt")

    loaded = torch.load(tmp_path / "model.pt")

    assert loaded["step"] == 3
    assert edges(recorded, "checkpoint load")[1].bytes == (tmp_path / "model.pt").stat().st_size


def test_buffers_are_no_checkpoints(recorded: Recording) -> None:
    buffer = io.BytesIO()

    torch.save(STATE, buffer)
    buffer.seek(0)
    torch.load(buffer)

    assert recorded.log.phases("checkpoint save") == recorded.log.phases("checkpoint load") == []


def test_torch_save_into_a_stream_without_a_path_is_a_phase_of_no_folder(recorded: Recording) -> None:
    class Upload(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            return len(data)

    upload: Any = Upload()
    torch.save(STATE, upload)

    _, ended = edges(recorded, "checkpoint save")
    assert (ended.format, ended.directory, ended.bytes, ended.failed) == ("torch", None, None, False)


def test_data_set_that_is_read_file_by_file_does_not_fill_the_log(recorded: Recording, tmp_path: Path) -> None:
    torch.save(1, tmp_path / "sample.pt")
    distdiag.step()

    for _ in range(3 * MOST_PER_STEP):
        torch.load(tmp_path / "sample.pt")

    assert len(recorded.log.phases("checkpoint load")) == 2 * MOST_PER_STEP


def test_samples_that_a_loader_reads_are_no_checkpoints(recorded: Recording, tmp_path: Path) -> None:
    torch.save(1, tmp_path / "sample.pt")

    class Samples(Dataset[Any]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return torch.load(tmp_path / "sample.pt")

    loader: Any = DataLoader(Samples())
    assert len(list(loader)) == 2

    assert recorded.log.phases("checkpoint load") == []


def test_calls_of_a_save_carry_its_phase_unless_the_user_named_one(alone: Recording, tmp_path: Path) -> None:
    dcp.save(STATE, checkpoint_id=tmp_path / "one")
    with distdiag.phase("evaluate"):
        dcp.save(STATE, checkpoint_id=tmp_path / "two")

    phases = [each.call.phase for each in alone.log.issued()]
    assert set(phases) == {"checkpoint save", "evaluate"}


def test_long_save_is_no_stall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTDIAG_PULSE_SECONDS", "0.05")
    written = threading.Event()

    class Slow:
        def __reduce__(self) -> tuple[type[int], tuple[int]]:
            written.wait(0.8)
            return int, (1,)

    with recording(tmp_path / "logs", stall_after=0.2) as made:
        torch.save(Slow(), tmp_path / "slow.pt")
        log = made.log

    assert log.phases("checkpoint save")[1].time_ns - log.phases("checkpoint save")[0].time_ns > 700_000_000
    assert log.of(events.Stack) == []


def test_broken_hashing_does_not_reach_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object) -> None:
        raise OSError("no more room")

    monkeypatch.delenv(RAISE_OWN_ERRORS)
    monkeypatch.setattr("distdiag.hooks._saving.write_record", broken)
    with recording(tmp_path / "logs"), lonely_world():
        dcp.save(STATE, checkpoint_id=tmp_path / "saved")

    assert verify(tmp_path / "saved").outcome == "whole"


def test_nothing_stays_patched(tmp_path: Path) -> None:
    def patched() -> tuple[Any, ...]:
        return (
            torch.save,
            torch.load,
            torch.serialization.save,
            dcp.async_save,
            state_dict_saver.async_save,
            vars(state_dict_saver)["_save_state_dict"],
            vars(state_dict_loader)["_load_state_dict"],
            filesystem.FileSystemWriter.write_data,
            filesystem.FileSystemWriter.finish,
            filesystem.FileSystemReader.read_data,
        )

    before = patched()
    with recording(tmp_path):
        during = patched()

    assert patched() == before
    assert all(one is not other for one, other in zip(before, during, strict=True))


def test_forked_child_records_nothing(recorded: Recording, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if not child:
        torch.save(1, tmp_path / "child.pt")
        os._exit(0)
    os.waitpid(child, 0)

    assert recorded.log.phases("checkpoint save") == []


def test_safetensors_files_are_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "safetensors"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "torch.py").write_text(
        "from pathlib import Path\n"
        "def save_file(tensors, filename, metadata=None): Path(filename).write_bytes(b'12345678')\n"
        "def load_file(filename, device='cpu'): return {}\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(sys.modules, "safetensors", raising=False)
    monkeypatch.delitem(sys.modules, "safetensors.torch", raising=False)
    path = tmp_path / "model.safetensors"

    with recording(tmp_path / "logs") as made:
        module = importlib.import_module("safetensors.torch")
        module.save_file({}, path)
        module.load_file(str(path))
        phases = [*made.log.phases("checkpoint save"), *made.log.phases("checkpoint load")]

    assert [(each.edge, each.format, each.bytes) for each in phases] == [
        ("begin", "safetensors", None),
        ("end", "safetensors", 8),
    ] * 2


@pytest.mark.parametrize(
    ("writing", "saving"),
    [
        ({"thread_count": 2}, {}),
        ({"single_file_per_rank": False}, {}),
        ({"single_file_per_rank": False, "thread_count": 3}, {}),
        ({"sync_files": False}, {}),
        ({}, {"use_collectives": False}),
    ],
)
def test_every_way_to_write_shards_is_hashed_and_verified(
    writing: dict[str, Any], saving: dict[str, Any], alone: Recording, tmp_path: Path
) -> None:
    state = {f"layer.{number}": torch.randn(20_000) for number in range(4)} | {"step": 3}
    writer = filesystem.FileSystemWriter(tmp_path / "saved", **writing)

    dcp.save(state, storage_writer=writer, **saving)
    whole = verify(tmp_path / "saved")
    shard = max((tmp_path / "saved").glob("*.distcp"))
    shard.unlink()

    assert (whole.problems, whole.facts.hashed) == ((), "all")
    assert [problem.file for problem in verify(tmp_path / "saved").problems] == [shard.name]
