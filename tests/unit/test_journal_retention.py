"""What a capped log keeps, what it drops, and what it says about that."""

import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distdiag import events
from distdiag.journal import segments_of
from tests.journals import call_line, disk_bytes, header_line, lines_in, open_journal, records_in, step_line

SEGMENT_BYTES = 512
CAP = 8 * SEGMENT_BYTES


@pytest.fixture(autouse=True)
def _own_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTDIAG_RAISE", "1")


def dropped_in(directory: Path) -> list[events.Dropped]:
    """Return the records that say what was dropped."""
    records = [events.decode(line) for line in lines_in(directory) if line.startswith(b'{"kind":"dropped"')]
    return [record for record in records if isinstance(record, events.Dropped)]


@settings(deadline=None, max_examples=60)
@given(
    kept=st.lists(st.booleans(), max_size=250).map(
        lambda coins: [coin and index % 4 == 0 for index, coin in enumerate(coins)]
    ),
    tick_every=st.integers(min_value=1, max_value=300),
)
def test_kept_kinds_are_never_lost_and_every_loss_is_counted(kept: list[bool], tick_every: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        journal = open_journal(directory, segment_bytes=SEGMENT_BYTES, max_bytes=CAP)

        for number, is_kept in enumerate(kept):
            journal.append(step_line(number) if is_kept else call_line(number, padding=60))
            if number % tick_every == 0:
                journal.tick()
        journal.tick()
        journal.close()

        records = records_in(directory)
        steps = [line for line in records if line.startswith(b'{"kind":"step"')]
        calls = [line for line in records if line.startswith(b'{"kind":"call"')]
        assert steps == [step_line(number) for number, is_kept in enumerate(kept) if is_kept]
        assert len(calls) + sum(record.records for record in dropped_in(directory)) == kept.count(False)
        assert calls == [call_line(n, padding=60) for n, is_kept in enumerate(kept) if not is_kept][-len(calls) :]


def test_dropped_records_name_segment_and_calls(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, segment_bytes=SEGMENT_BYTES, max_bytes=CAP)
    for call in range(1, 101):
        journal.append(call_line(call, padding=60))
        journal.tick()
    journal.close()

    dropped = dropped_in(tmp_path)
    remaining = next(line for line in records_in(tmp_path) if line.startswith(b'{"kind":"call"'))

    assert [record.segment for record in dropped] == list(range(len(dropped)))
    assert {record.reason for record in dropped} == {"cap"}
    assert dropped[0].calls[0] == 1
    assert all(after.calls[0] == before.calls[1] + 1 for before, after in pairwise(dropped))
    assert remaining == call_line(dropped[-1].calls[1] + 1, padding=60)
    assert disk_bytes(tmp_path) <= CAP


@pytest.mark.parametrize("ticks", [True, False])
def test_disk_use_stays_bounded_with_and_without_ticks(tmp_path: Path, ticks: bool) -> None:
    journal = open_journal(tmp_path, segment_bytes=SEGMENT_BYTES, max_bytes=CAP)
    most = 0

    for call in range(2000):
        journal.append(call_line(call, padding=60))
        if ticks and call % 5 == 0:
            journal.tick()
        if call % 10 == 0:
            most = max(most, disk_bytes(tmp_path))
    journal.close()

    history = sum(len(line) for line in lines_in(tmp_path) if line.startswith(b'{"kind":"dropped"'))
    assert most <= CAP + history + 6 * SEGMENT_BYTES
    assert records_in(tmp_path)[-1] == call_line(1999, padding=60)


def test_disk_use_stays_bounded_while_nothing_can_be_condensed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distdiag.journal.OVERDUE_PATIENCE_SECONDS", 0.01)
    journal = open_journal(tmp_path, segment_bytes=SEGMENT_BYTES, max_bytes=CAP)

    with journal._tidying(0):  # as if the ticking thread hung in there
        for call in range(1, 501):
            journal.append(call_line(call, padding=60))
        assert disk_bytes(tmp_path) <= CAP + 6 * SEGMENT_BYTES
    journal.tick()
    journal.append(call_line(501, padding=60))
    journal.close()

    *_, missed, last = records_in(tmp_path)
    assert b'"reason":"no-space"' in missed
    assert missed.endswith(b",500]}\n")
    assert last == call_line(501, padding=60)


def test_history_is_gathered_in_few_files(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, segment_bytes=4096, max_bytes=8 * 4096)
    for call in range(6000):
        journal.append(call_line(call, padding=60))
        if call % 20 == 0:
            journal.append(step_line(call))
            journal.tick()
    journal.close()

    (log,) = segments_of(tmp_path)

    assert journal.segment > 100
    assert len(log.files) < 20


def test_call_sites_of_kept_records_stay_and_others_go(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, segment_bytes=SEGMENT_BYTES, max_bytes=CAP)
    used, unused = (events.encode(events.Path(path=number, frames=["train.py:1 main"])) for number in (1, 2))
    phase = events.encode(events.Phase(phase="save", edge="begin", number=1, time_ns=5, path=1))
    journal.append(used + unused)
    journal.append(phase)

    for call in range(100):
        journal.append(call_line(call, padding=60))
        journal.tick()
    journal.close()

    assert [line for line in records_in(tmp_path) if b"path" in line or b"phase" in line[:20]] == [used, phase]


def test_what_the_next_segment_leans_on_outlives_its_own(tmp_path: Path) -> None:
    signature = events.encode(events.Signature(signature=7, group="0", op="all_reduce", path=1, agree=1))
    path = events.encode(events.Path(path=1, frames=["train.py:1 main"]))
    filling = call_line(1, padding=600)
    leaning = events.encode(events.Call(call=2, signature=7, seq=1, step=0, start_ns=1))
    journal = open_journal(tmp_path, segment_bytes=900, max_bytes=CAP)
    journal.append(path + signature + filling)
    journal.append(leaning + call_line(3, padding=500))  # where the number of the signature was looked up before

    condensed = tmp_path / "rank00000.jsonl"
    for call in range(4, 100):
        journal.append(call_line(call, padding=500))
        journal.tick()
        if b'"dropped"' in condensed.read_bytes():
            break
    journal.close()

    assert path + signature in condensed.read_bytes()
    assert leaning in records_in(tmp_path)


def test_groups_and_headers_are_kept_once(tmp_path: Path) -> None:
    def header(segment: int) -> bytes:
        return header_line(segment) + events.encode(
            events.Group(group="0", ranks=[0, 1], backend="gloo", time_ns=1000 + segment)
        )

    journal = open_journal(tmp_path, header=header, segment_bytes=SEGMENT_BYTES, max_bytes=CAP)
    journal.append(call_line(0))
    journal.append(header_line(99))  # again, with the rank that is known now
    for call in range(1, 40):
        journal.append(call_line(call, padding=60))
        journal.tick()
    journal.close()

    (log,) = segments_of(tmp_path)
    kinds = [line.split(b'"')[3] for line in log.files[0].read_bytes().splitlines()]

    assert kinds.count(b"dropped") > 1
    assert kinds.count(b"header") == 2
    assert kinds.count(b"group") == 1


def test_death_before_a_condensed_segment_is_removed_doubles_nothing(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, segment_bytes=SEGMENT_BYTES, max_bytes=CAP)
    copies = tmp_path / "copies"
    copies.mkdir()
    for step in range(60):
        journal.append(step_line(step) + call_line(step, padding=100))
        for path in tmp_path.glob("*.jsonl"):
            shutil.copy(path, copies)
        journal.tick()
    journal.close()
    (log,) = segments_of(tmp_path)
    last_removed = max(set(copies.iterdir()) - {copies / file.name for file in log.files})

    shutil.copy(last_removed, tmp_path)

    steps = [line for line in records_in(tmp_path) if line.startswith(b'{"kind":"step"')]
    assert last_removed.name in {path.name for path in tmp_path.iterdir()}
    assert steps == [step_line(step) for step in range(60)]


@pytest.mark.parametrize("which", [0, 1, -2, -1])
def test_segments_removed_by_hand_do_not_stop_the_log(tmp_path: Path, which: int) -> None:
    journal = open_journal(tmp_path, segment_bytes=SEGMENT_BYTES, max_bytes=CAP)
    for call in range(300):
        journal.append(call_line(call, padding=60))
        journal.tick()
        if call % 50 == 25:
            sorted(tmp_path.glob("*.jsonl"))[which].unlink()
    journal.close()

    assert records_in(tmp_path)[-1] == call_line(299, padding=60)
    assert disk_bytes(tmp_path) <= 2 * CAP


def test_small_cap_makes_small_segments(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, segment_bytes=4 << 20, max_bytes=1 << 20)

    journal.append(call_line(1))

    assert disk_bytes(tmp_path) == 1 << 17
    journal.close()
