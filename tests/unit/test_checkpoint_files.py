"""Checkpoints that are plain files: of torch.save, of safetensors, one per rank."""

import io
import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distdiag.checkpoints import Told, Verification, verify
from distdiag.checkpoints.archives import Window, frame_digest, open_archive
from distdiag.errors import DistdiagError


def save(path: Path, **tensors: Any) -> Path:
    torch.save(tensors or {"weight": torch.arange(50_000.0), "step": 3}, path)
    return path


def safetensors(path: Path, *, holes: int = 0, **sizes: int) -> Path:
    """Write float tensors of some sizes, as the format says."""
    header, at = {}, 0
    for name, size in sizes.items():
        header[name] = {"dtype": "F32", "shape": [size], "data_offsets": [at, at + 4 * size]}
        at += 4 * size + holes
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(at))
    return path


def kinds(found: Verification) -> list[str]:
    return [problem.kind for problem in found.problems]


def test_whole_file_of_torch_is_whole(tmp_path: Path) -> None:
    found = verify(save(tmp_path / "model.pt"))

    assert (found.outcome, found.facts.kind, found.facts.tensors, found.facts.elements) == ("whole", "torch", 1, 50_000)


@pytest.mark.parametrize(
    "value",
    [
        torch.nn.Parameter(torch.ones(3)),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(2, 3).t(),
        torch.ones(1).expand(7),
        torch.ones(0),
        torch.ones(4, dtype=torch.float8_e4m3fn),
        torch.ones(3, 3).to_sparse(),
        {1, 2},
        Path("somewhere"),
    ],
    ids=repr,
)
@pytest.mark.filterwarnings("ignore")
def test_whatever_torch_saves_is_whole(value: object, tmp_path: Path) -> None:
    assert verify(save(tmp_path / "model.pt", value=value)).problems == ()


def test_file_that_was_saved_without_checksums_is_whole(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        save(tmp_path / "model.pt")
    finally:
        torch.serialization.set_crc32_options(True)

    assert verify(tmp_path / "model.pt").problems == ()


def test_file_of_the_old_format_is_said_to_be_unreadable_here(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(3)}, tmp_path / "model.pt", _use_new_zipfile_serialization=False)

    found = verify(tmp_path / "model.pt")

    assert found.problems == ()
    assert "old format" in found.notes[0]


def test_flipped_bit_is_found(tmp_path: Path) -> None:
    path = save(tmp_path / "model.pt")
    data = bytearray(path.read_bytes())
    data[100_000] ^= 1
    path.write_bytes(data)

    (problem,) = verify(path).problems

    assert re.match(
        r"model\.pt, bytes \d+-\d+ \(weight\) do not have the checksum they were saved with", problem.summary
    )
    assert problem.tensor == "weight"
    assert problem.start is not None
    assert problem.end is not None
    assert problem.start <= 100_000 < problem.end


@pytest.mark.parametrize(("size", "kind"), [(0, "empty-file"), (150_000, "truncated")])
def test_cut_file_is_incomplete(size: int, kind: str, tmp_path: Path) -> None:
    path = save(tmp_path / "model.pt")
    os.truncate(path, size)

    found = verify(path)

    assert (kinds(found), found.outcome) == ([kind], "checkpoint-incomplete")


@given(at=st.integers(0, 3000), junk=st.binary(min_size=1, max_size=30))
@settings(max_examples=200, deadline=None)
def test_damaged_archive_never_escapes_as_an_error(
    at: int, junk: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.pt"
    buffer = io.BytesIO()
    torch.save({"weight": torch.ones(300), "names": ["a", "b"]}, buffer)
    data = buffer.getvalue()
    at = min(at, len(data))
    path.write_bytes(data[:at] + junk + data[at + len(junk) :])

    assert verify(path).outcome in ("whole", "checkpoint-incomplete", "checkpoint-corrupt")


def test_pickle_of_an_archive_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "ran"

    class Malicious:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(mark),)

    found = verify(save(tmp_path / "model.pt", state=Malicious()))

    assert not mark.exists()
    assert found.problems == ()


def test_files_of_all_ranks_load_only_at_their_number(tmp_path: Path) -> None:
    for rank in range(4):
        save(tmp_path / f"model_rank_{rank}.pt")

    found = verify(tmp_path)

    assert found.problems == ()
    assert (found.facts.kind, found.facts.world_size) == ("per-rank", 4)
    assert found.loads == "only at 4 ranks: each file is one rank's own"


def test_file_of_a_rank_that_is_gone_is_missed(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        save(tmp_path / f"model_rank_{rank}.pt")

    (problem,) = verify(tmp_path).problems

    assert problem.summary == "model_rank_2.pt is not there: of model_rank_*.pt, 3 files are, up to 3"


def test_steps_in_one_folder_are_no_ranks(tmp_path: Path) -> None:
    for step in (100, 200, 400):
        save(tmp_path / f"model-{step}.pt")

    found = verify(tmp_path)

    assert (found.problems, found.facts.kind) == ((), "torch")


def test_file_of_another_save_is_found_with_the_logs(tmp_path: Path) -> None:
    path = save(tmp_path / "model.pt", weight=torch.zeros(50_000))
    with path.open("rb") as file:
        size = path.stat().st_size
        assert size > 0
        digest = frame_digest(Window(file.fileno(), 0, size), open_archive(Window(file.fileno(), 0, size))[0].entries)
    save(path, weight=torch.ones(50_000))

    found = verify(path, Told(files={"model.pt": f"{size}:{digest:08x}"}))

    assert (kinds(found), found.facts.hashed) == (["hash"], "all")


def test_whole_safetensors_are_whole_and_say_what_they_cannot_show(tmp_path: Path) -> None:
    found = verify(safetensors(tmp_path / "model.safetensors", a=3, b=5))

    assert (found.problems, found.facts.tensors, found.facts.elements) == ((), 2, 8)
    assert "safetensors keeps no checksums" in found.unknowable[0]


@pytest.mark.parametrize(
    ("harm", "kind"),
    [
        (lambda path: os.truncate(path, path.stat().st_size - 4), "truncated"),
        (lambda path: os.truncate(path, 20), "truncated"),
        (lambda path: path.write_bytes(path.read_bytes() + b"more"), "surplus-bytes"),
        (lambda path: path.write_bytes(path.read_bytes().replace(b'"shape": [3]', b'"shape": [9]')), "short-tensor"),
        (lambda path: path.write_bytes(path.read_bytes().replace(b'{"__meta', b'x"__meta')), "header"),
        (lambda path: safetensors(path, holes=4, a=3, b=5), "bytes-shared"),
    ],
)
def test_injured_safetensors_are_found(harm: Any, kind: str, tmp_path: Path) -> None:
    path = safetensors(tmp_path / "model.safetensors", a=3, b=5)

    harm(path)

    assert kinds(verify(path)) == [kind]


def test_index_names_files_and_tensors_that_have_to_be_there(tmp_path: Path) -> None:
    safetensors(tmp_path / "model-00001-of-00002.safetensors", a=3)
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))

    gone = verify(tmp_path)
    safetensors(tmp_path / "model-00002-of-00002.safetensors", c=3)
    other = verify(tmp_path)

    assert "model-00002-of-00002.safetensors is not there" in gone.problems[0].summary
    assert kinds(other) == ["other-tensor"]
    assert other.problems[0].tensor == "b"


def test_archive_that_is_no_checkpoint_of_torch_is_corrupt(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("readme.txt", "no tensors here")

    assert kinds(verify(tmp_path / "model.pt")) == ["no-archive"]


def test_path_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(DistdiagError, match="no such file or folder"):
        verify(tmp_path / "gone")


def test_folder_of_checkpoints_names_those_inside(tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()
    save(tmp_path / "step-1" / "model.pt")

    with pytest.raises(DistdiagError, match="no checkpoint in") as raised:
        verify(tmp_path)

    assert raised.value.hint == "is it one of step-1?"
