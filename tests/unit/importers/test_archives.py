"""Packed logs, as people pass them on."""

import bz2
import gzip
import io
import lzma
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.importers import _archives, load
from distdiag.importers._archives import ArchiveError, unpack
from tests import training_output as out
from tests.commandline import distdiag
from tests.unit.importers.test_folders import stuck

Pack = Callable[[bytes], bytes]


def text_of(rank: int) -> str:
    return out.text(out.watchdog(rank, 7))


def tar_of(folder: Path, file: Path, mode: str = "w:gz") -> Path:
    with tarfile.open(file, mode) as archive:  # type: ignore[call-overload]  # the mode is one of tarfile's
        archive.add(folder, "logs")
    return file


@pytest.mark.parametrize(
    ("suffix", "pack"), [("gz", gzip.compress), ("xz", lzma.compress), ("bz2", bz2.compress)], ids=["gz", "xz", "bz2"]
)
def test_packed_logs_are_read(suffix: str, pack: Pack, tmp_path: Path) -> None:
    stuck(missing=2).write(tmp_path)
    for file in list(tmp_path.iterdir()):
        (tmp_path / f"{file.name}.{suffix}").write_bytes(pack(file.read_bytes()))
        file.unlink()

    assert load(tmp_path).ranks == (0, 1, 2, 3)


def test_packed_output_keeps_the_rank_of_its_name(tmp_path: Path) -> None:
    for rank in (0, 2, 3):
        line = out.old_watchdog(0, seq=7)
        (tmp_path / f"rank{rank}.log.gz").write_bytes(gzip.compress((line + "\n").encode()))

    assert diagnose(load(tmp_path)).verdict.victims == (0, 2, 3)


@pytest.mark.skipif(shutil.which("zstd") is None, reason="zstd is not installed")
def test_logs_packed_with_zstd_are_read_where_it_is_installed(tmp_path: Path) -> None:
    stuck(missing=2).write(tmp_path)
    subprocess.run(["zstd", "-q", "--rm", *map(str, tmp_path.iterdir())], check=True)

    assert load(tmp_path).ranks == (0, 1, 2, 3)


def test_without_zstd_it_is_said_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rank0.log.zst").write_bytes(b"\x28\xb5\x2f\xfd\x00")
    monkeypatch.setenv("PATH", "")

    done = distdiag("analyze", tmp_path)

    assert done.returncode == 2
    assert "rank0.log.zst is packed with zstd, which is not installed here: unpack it first" in done.stderr


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_a_tar_file_is_a_folder(mode: str, tmp_path: Path) -> None:
    stuck(missing=2).write(tmp_path / "logs")

    run = load(tar_of(tmp_path / "logs", tmp_path / "passed_on.tar", mode))

    assert run.ranks == (0, 1, 2, 3)


def test_a_zip_file_of_packed_output_is_a_folder(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "logs.zip", "w") as archive:
        for rank in range(3):
            archive.writestr(f"job/rank{rank}.log.gz", gzip.compress(text_of(rank).encode()))

    assert load(tmp_path).ranks == (0, 1, 2)


def test_archives_of_the_hosts_are_one_run(tmp_path: Path) -> None:
    stuck(missing=2).write(tmp_path / "all")
    for host in range(2):
        part = tmp_path / "parts" / f"host{host}"
        part.mkdir(parents=True)
        for rank in (2 * host, 2 * host + 1):
            shutil.move(tmp_path / "all" / f"rank{rank:05d}.jsonl", part)
        tar_of(part, tmp_path / f"host{host}.tgz")
    shutil.rmtree(tmp_path / "parts")

    assert load(tmp_path).ranks == (0, 1, 2, 3)


def test_nothing_is_written_outside_of_the_folder(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "evil.tar", "w") as archive:
        for name in ("../outside.log", "/tmp/../../absolute.log"):
            member = tarfile.TarInfo(name)
            member.size = 3
            archive.addfile(member, io.BytesIO(b"abc"))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc"
        archive.addfile(link)
    target = tmp_path / "target"

    unpack(tmp_path / "evil.tar", (tmp_path / "evil.tar").read_bytes(), target, 1 << 20)

    written = [file for file in tmp_path.rglob("*") if file.name != "evil.tar" and not file.is_dir()]
    assert len(written) == 2
    assert all(file.is_relative_to(target) and not file.is_symlink() for file in written)


def test_what_unpacks_without_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_archives, "CHUNK_BYTES", 1 << 10)
    bomb = tmp_path / "bomb.log.gz"
    bomb.write_bytes(gzip.compress(b"0" * (1 << 20)))

    with pytest.raises(ArchiveError, match="unpack bomb"):
        unpack(bomb, bomb.read_bytes(), tmp_path / "target", 1 << 16)

    assert (tmp_path / "target" / "bomb.log").stat().st_size <= 1 << 16


def test_a_damaged_archive_is_named_beside_logs_that_are_whole(tmp_path: Path) -> None:
    stuck(missing=2).write(tmp_path)
    (tmp_path / "more.log.gz").write_bytes(gzip.compress(b"0" * 5000 + bytes(range(256)) * 50)[:60])

    run = load(tmp_path)

    assert run.ranks == (0, 1, 2, 3)
    assert any(note.startswith("more.log.gz cannot be unpacked: ") for note in run.quality.notes)


def test_what_was_unpacked_is_gone_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    stuck(missing=2).write(tmp_path / "logs")
    archive = tar_of(tmp_path / "logs", tmp_path / "logs.tgz")

    run = load(archive)
    assert list((tmp_path / "scratch").iterdir())
    del run

    assert list((tmp_path / "scratch").iterdir()) == []


def test_checkpoints_among_logs_are_not_unpacked(tmp_path: Path) -> None:
    stuck(missing=2).write(tmp_path)
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("model/data.pkl", b"x" * 100)

    assert load(tmp_path).quality.notes == ()
