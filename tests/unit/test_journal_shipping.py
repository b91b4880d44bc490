"""A log directory on a network file system: written on the node, shipped by a thread."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from distdiag import journal
from distdiag.journal import Journal, is_network_filesystem, segments_of, shipping
from tests.journals import call_line, header_line, lines_in, open_journal, records_in, step_line

MOUNTS = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 27 0:30 / /home rw,relatime shared:2 - nfs4 server:/home rw
31 30 0:31 / /home/local\040disk rw,relatime - xfs /dev/vdb rw
32 27 0:32 / /data rw,relatime - ext4 /dev/vdc rw
33 32 0:33 / /data rw,relatime - fuse.s3fs s3fs rw
34 27 0:34 / /root rw,relatime - fuse.fuse-overlayfs fuse-overlayfs rw
"""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that counts as one on a network file system."""
    monkeypatch.setenv("DISTDIAG_RAISE", "1")
    directory = tmp_path / "target"
    (tmp_path / "node").mkdir()
    monkeypatch.setattr(journal, "is_network_filesystem", directory.__eq__)
    monkeypatch.setattr(shipping, "is_network_filesystem", lambda path: False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "node"))
    return directory


def until(condition: Callable[[], bool], seconds: float = 10) -> bool:
    """Wait for what another thread does."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)
    return condition()


def arrive(log: Journal, target: Path, records: list[bytes]) -> bool:
    """Wait, with ticks, until the target holds these records."""

    def arrived() -> bool:
        log.tick()
        return target.is_dir() and bool(segments_of(target)) and records_in(target) == records

    return until(arrived)


@pytest.mark.parametrize(
    ("directory", "expected"),
    [
        ("/home/me/logs", True),
        ("/home", True),
        ("/homes/me", False),
        ("/home/local disk/logs", False),
        ("/data/x", True),
        ("/root/logs", False),
        ("/tmp/logs", False),
    ],
)
def test_network_file_systems_are_told_by_the_longest_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directory: str, expected: bool
) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS.lstrip())
    monkeypatch.setattr(shipping, "MOUNTS", tmp_path / "mountinfo")
    monkeypatch.setattr("os.path.realpath", str)

    assert is_network_filesystem(Path(directory)) is expected


def test_log_is_written_on_the_node_and_arrives_whole(target: Path, tmp_path: Path) -> None:
    log = open_journal(target, segment_bytes=500)
    assert log.shipped_from is not None
    assert log.path.parent == log.shipped_from
    assert log.shipped_from.stat().st_mode & 0o077 == 0
    log.append(call_line(0))
    assert arrive(log, target, [call_line(0)])

    for call in range(1, 100):
        log.append(call_line(call))
        if call % 10 == 0:
            log.tick()
    log.close()

    assert lines_in(target)[0] == header_line(0)
    assert records_in(target) == [call_line(call) for call in range(100)]
    assert not list((tmp_path / "node").glob("*/*/*"))


def test_directory_on_the_node_is_not_shipped(tmp_path: Path) -> None:
    log = open_journal(tmp_path)

    assert log.shipped_from is None
    log.close()


def test_renamed_and_condensed_files_are_mirrored(target: Path) -> None:
    log = open_journal(target, stem="node-1", segment_bytes=512, max_bytes=4096)
    for step in range(300):
        log.append(step_line(step) + call_line(step, padding=100))
        if step % 5 == 0:
            log.tick()
        if step == 100:
            log.rename("rank00003")
    assert log.shipped_from is not None
    local = [path.name for path in segments_of(log.shipped_from)[0].files]
    log.close()

    assert {path.name for path in target.iterdir()} <= {*local, log.path.name}
    assert [line for line in records_in(target) if b"step" in line] == [step_line(step) for step in range(300)]


def test_attempts_of_other_nodes_are_not_overwritten(target: Path) -> None:
    target.mkdir()
    (target / "rank00000.jsonl").write_bytes(call_line(7))

    log = open_journal(target)
    log.append(call_line(1))
    log.close()

    assert log.attempt == 1
    assert (target / "rank00000.jsonl").read_bytes() == call_line(7)
    assert (target / "rank00000.attempt1.jsonl").read_bytes() == header_line(0) + call_line(1)


def test_failing_target_is_tried_again(target: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "distdiag")
    target.write_text("in the way")
    log = open_journal(target)
    log.append(call_line(1))

    def failed() -> bool:
        log.tick()
        return "cannot ship" in caplog.text

    assert until(failed)
    target.unlink()
    log.append(call_line(2))

    assert arrive(log, target, [call_line(1), call_line(2)])
    log.close()
    assert records_in(target) == [call_line(1), call_line(2)]


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> "list[threading.Event]":
    """Let everything that asks the target hang until the event is set."""
    answered = threading.Event()

    def hang(*arguments: object) -> int:
        answered.wait(20)
        raise OSError("stale")

    monkeypatch.setattr(shipping, "reserve", hang)
    monkeypatch.setattr(shipping, "attempts_in", hang)
    return [answered]


def test_hanging_target_holds_up_neither_append_nor_close(
    target: Path, hanging: "list[threading.Event]", monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = 1.0
    monkeypatch.setattr(shipping, "PATIENCE_SECONDS", patience)
    log = open_journal(target, segment_bytes=1000)
    longest = 0.0

    def timed(act: Callable[[], None]) -> float:
        start = time.monotonic()
        act()
        return time.monotonic() - start

    for call in range(500):
        longest = max(longest, timed(lambda call=call: log.append(call_line(call))))  # type: ignore[misc]  # bound now
        if call % 50 == 0:
            longest = max(longest, timed(log.tick))
    closing = timed(log.close)
    hanging[0].set()

    assert longest < patience
    assert closing < 8 * patience  # the target hangs for longer
    assert log.shipped_from is not None
    assert len(records_in(log.shipped_from)) == 500


def test_private_directory_of_somebody_else_is_not_used(target: Path, tmp_path: Path) -> None:
    first = open_journal(target)
    assert first.shipped_from is not None
    first.shipped_from.parent.chmod(0o777)

    second: Journal = open_journal(target, stem="rank00001")

    assert second.shipped_from is not None
    assert second.shipped_from.parent != first.shipped_from.parent
    assert second.shipped_from.parent.stat().st_mode & 0o077 == 0
    first.close()
    second.close()
