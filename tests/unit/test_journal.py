"""The journal as a training process uses it: names, segments, attempts, the end."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from distdiag.journal import log_name, segments_of
from tests.journals import call_line, header_line, open_journal, records_in


@pytest.fixture(autouse=True)
def _own_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTDIAG_RAISE", "1")


def test_every_segment_begins_with_its_header(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, segment_bytes=300)

    for call in range(20):
        journal.append(call_line(call, padding=50))
    journal.close()

    (log,) = segments_of(tmp_path)
    assert [file.read_bytes().split(b"\n")[0] + b"\n" for file in log.files] == [
        header_line(segment) for segment in range(len(log.files))
    ]
    assert len(log.files) > 3
    assert records_in(tmp_path) == [call_line(call, padding=50) for call in range(20)]


def test_segment_and_path_tell_where_the_last_line_went(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, segment_bytes=300)

    for call in range(20):
        journal.append(call_line(call, padding=50))
        assert journal.path.read_bytes().rstrip(b"\0").endswith(call_line(call, padding=50))
    journal.close()

    assert journal.path == tmp_path / f"rank00000.{journal.segment:04d}.jsonl"


def test_restart_never_overwrites(tmp_path: Path) -> None:
    for attempt in (None, None, 1, 5):
        journal = open_journal(tmp_path, attempt=attempt)
        journal.append(call_line(journal.attempt))
        journal.close()

    logs = segments_of(tmp_path)

    assert [log.attempt for log in logs] == [0, 1, 2, 5]
    assert [log.files[0].name for log in logs][:2] == ["rank00000.jsonl", "rank00000.attempt1.jsonl"]
    assert [log.files[0].read_bytes() for log in logs] == [header_line(0) + call_line(n) for n in (0, 1, 2, 5)]


def test_later_segment_of_a_removed_log_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "rank00000.0001.jsonl").write_bytes(call_line(7))

    journal = open_journal(tmp_path)

    assert journal.attempt == 1
    journal.close()


def test_simultaneous_starts_get_different_attempts(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        journals = list(pool.map(lambda _: open_journal(tmp_path), range(8)))

    assert sorted(journal.attempt for journal in journals) == list(range(8))
    for journal in journals:
        journal.close()


def test_files_are_renamed_when_the_rank_becomes_known(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, stem=log_name(None), segment_bytes=300)
    for call in range(10):
        journal.append(call_line(call, padding=50))

    journal.rename(log_name(3))
    for call in range(10, 20):
        journal.append(call_line(call, padding=50))
    journal.close()

    (log,) = segments_of(tmp_path)
    assert log.rank == 3
    assert records_in(tmp_path) == [call_line(call, padding=50) for call in range(20)]


def test_rename_takes_the_next_attempt_where_the_name_is_taken(tmp_path: Path) -> None:
    (tmp_path / "rank00003.jsonl").write_bytes(call_line(7))
    journal = open_journal(tmp_path, stem=log_name(None))
    journal.append(call_line(1))

    journal.rename(log_name(3))
    journal.close()

    assert journal.attempt == 1
    assert (tmp_path / "rank00003.jsonl").read_bytes() == call_line(7)
    assert (tmp_path / "rank00003.attempt1.jsonl").read_bytes() == header_line(0) + call_line(1)


def test_rename_before_the_first_record(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, stem=log_name(None))

    journal.rename(log_name(3))
    journal.append(call_line(1))
    journal.close()

    assert [path.name for path in tmp_path.iterdir()] == ["rank00003.jsonl"]
    assert records_in(tmp_path) == [call_line(1)]


def test_close_cuts_the_file_and_later_appends_do_nothing(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append(call_line(1))
    assert journal.path.stat().st_size == 4096

    journal.close()
    journal.close()
    for call in range(100):
        journal.append(call_line(call, padding=100))
    journal.tick()
    journal.rename("rank00007")

    assert [path.name for path in tmp_path.iterdir()] == ["rank00000.jsonl"]
    assert journal.path.read_bytes() == header_line(0) + call_line(1)


def test_log_goes_on_where_it_began_when_the_program_changes_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    journal = open_journal(Path("logs"), segment_bytes=300)
    (tmp_path / "elsewhere").mkdir()

    monkeypatch.chdir(tmp_path / "elsewhere")
    for call in range(20):
        journal.append(call_line(call, padding=50))
    journal.close()

    assert len(records_in(tmp_path / "logs")) == 20
