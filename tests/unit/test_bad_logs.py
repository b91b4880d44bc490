"""Directories that are no proper logs: an error that says what to do, or a run that knows what is wrong with it."""

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distdiag import events
from distdiag.errors import DistdiagError
from distdiag.run import load
from tests.logs import SECOND_NS, Logs


def trained(world_size: int = 2, **options: str) -> Logs:
    logs = Logs(world_size=world_size, **options)  # type: ignore[arg-type]  # only texts are passed in these tests
    for rank in logs:
        for _ in range(3):
            rank.all_reduce()
            rank.end_step()
    return logs


def refused(path: Path) -> DistdiagError:
    with pytest.raises(DistdiagError) as caught:
        load(path)
    assert caught.value.hint
    assert "\n" not in caught.value.message
    return caught.value


def test_a_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "nowhere") in refused(tmp_path / "nowhere").message


def test_an_empty_directory_has_no_logs(tmp_path: Path) -> None:
    assert "no *.jsonl files" in refused(tmp_path).message


def test_unrelated_files_are_no_logs(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "rank00000.jsonl.gz").write_bytes(b"\x1f\x8b")
    (tmp_path / "folder.jsonl").mkdir()

    assert "no *.jsonl files" in refused(tmp_path).message


def test_unrelated_json_lines_are_no_logs(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "hello"}\n{"text": "world"}\n')

    assert "rank" in refused(tmp_path).message


def test_unrelated_files_beside_logs_do_not_matter(tmp_path: Path) -> None:
    trained().write(tmp_path)
    (tmp_path / "data.jsonl").write_text('{"text": "hello"}\n')
    (tmp_path / "notes.txt").write_text("hello")

    run = load(tmp_path)

    assert run.ranks == (0, 1)
    assert run.quality.nameless_files == ("data.jsonl",)


def test_empty_files_are_told(tmp_path: Path) -> None:
    (tmp_path / "rank00000.jsonl").touch()
    (tmp_path / "rank00001.jsonl").write_bytes(b"\0" * 100_000)

    assert "all 2 logs" in refused(tmp_path).message


def test_an_empty_file_among_logs_is_a_missing_rank(tmp_path: Path) -> None:
    trained().write(tmp_path)
    (tmp_path / "rank00001.jsonl").write_bytes(b"")

    run = load(tmp_path)

    assert (run.missing, run.quality.empty_files) == ((1,), ("rank00001.jsonl",))


@pytest.mark.parametrize("junk", [bytes(range(256)) * 40, b"\n" * 50, b"{}\n" * 9, b'"text"\n[1]\n3\n', b"\xff" * 5000])
def test_junk_is_no_record(tmp_path: Path, junk: bytes) -> None:
    (tmp_path / "rank00000.jsonl").write_bytes(junk)

    assert "no readable record" in refused(tmp_path).message


def test_junk_in_the_place_of_a_log_is_a_missing_rank(tmp_path: Path) -> None:
    trained().write(tmp_path)
    (tmp_path / "rank00001.jsonl").write_bytes(random.Random(0).randbytes(5000))

    run = load(tmp_path)

    assert (run.ranks, run.missing) == ((0,), (1,))
    assert run.quality.unreadable_files == ("rank00001.jsonl",)


def test_a_torn_last_line_is_normal(tmp_path: Path) -> None:
    file = trained().write(tmp_path) / "rank00001.jsonl"
    file.write_bytes(file.read_bytes()[:-9])

    run = load(tmp_path)

    assert run.quality.torn_files == ("rank00001.jsonl",)
    assert run.quality.undecodable_lines == {}


def test_a_last_line_that_only_lacks_its_newline_is_whole(tmp_path: Path) -> None:
    file = trained().write(tmp_path) / "rank00001.jsonl"
    file.write_bytes(file.read_bytes()[:-1])

    run = load(tmp_path)

    assert run.quality.torn_files == ()
    assert len(run.steps) == 6


@pytest.mark.parametrize(
    ("damage", "lines"),
    [
        (lambda line: line[: len(line) // 2] + b"\n", 1),
        (lambda line: line.replace(b'"seq":', b'"seq":"x'), 1),
        (lambda line: line.replace(b'"seq":2', b'"seq":[2]'), 1),
        (lambda line: b"\xff\xfe" + line, 1),
        (lambda line: line[:10] + b"\n" + line[10:], 2),
        (lambda line: b"\0" * 100 + line, 1),
    ],
)
def test_damaged_lines_are_counted_and_the_rest_is_read(
    tmp_path: Path, damage: Callable[[bytes], bytes], lines: int
) -> None:
    file = trained().write(tmp_path) / "rank00001.jsonl"
    text = file.read_bytes().splitlines(keepends=True)
    place = next(number for number, line in enumerate(text) if b'"call":2' in line)
    text[place] = damage(text[place])
    file.write_bytes(b"".join(text))

    run = load(tmp_path)

    assert run.quality.undecodable_lines == {"rank00001.jsonl": lines}
    assert run.calls[run.calls["rank"] == 1]["seq"].tolist() == [1, 3]


def test_a_record_of_another_kind_that_does_not_fit_is_damaged(tmp_path: Path) -> None:
    file = trained().write(tmp_path) / "rank00000.jsonl"
    file.write_bytes(file.read_bytes() + b'{"kind":"step","step":"three"}\n{"no":"kind"}\n')

    assert load(tmp_path).quality.undecodable_lines == {"rank00000.jsonl": 2}


def test_logs_of_a_newer_schema_alone_are_refused(tmp_path: Path) -> None:
    logs = trained()
    for rank in logs:
        rank.header.schema = "distdiag.log/2"

    assert "distdiag.log/2" in refused(logs.write(tmp_path)).message


def test_a_newer_header_that_cannot_be_decoded_is_still_known_by_its_schema(tmp_path: Path) -> None:
    (tmp_path / "rank00000.jsonl").write_text('{"kind":"header","schema":"distdiag.log/7","run":{"id":1}}\n')

    assert "distdiag.log/7" in refused(tmp_path).message


def test_one_log_of_a_newer_schema_is_left_out(tmp_path: Path) -> None:
    logs = trained()
    logs[1].header.schema = "distdiag.log/2"

    run = logs.load(tmp_path)

    assert (run.ranks, run.missing) == ((0,), (1,))
    assert run.quality.unsupported_files == {"rank00001.jsonl": "distdiag.log/2"}


def test_a_newer_minor_version_is_read(tmp_path: Path) -> None:
    logs = trained()
    logs[0].header.schema = "distdiag.log/1.4"

    assert logs.load(tmp_path).ranks == (0, 1)


def test_of_two_launches_the_newer_one_is_analysed(tmp_path: Path) -> None:
    trained(run="old").write(tmp_path)
    newer = trained(world_size=2, run="new")
    for rank in newer:
        rank.header.wall_ns += 1000 * SECOND_NS
        (tmp_path / f"rank{rank.rank:05d}.attempt1.jsonl").write_bytes(rank.written())

    run = load(tmp_path)

    assert (run.quality.run, run.quality.other_runs, run.attempt) == ("new", ("old",), 1)
    assert len(run.calls) == 6


def test_of_several_attempts_the_newest_is_analysed(tmp_path: Path) -> None:
    trained().write(tmp_path)
    again = Logs(world_size=2, attempt=1)
    for rank in again:
        rank.header.wall_ns += 1000 * SECOND_NS
        rank.all_reduce()

    run = again.load(tmp_path)

    assert (run.attempt, run.quality.older_attempts, len(run.calls)) == (1, (0,), 2)


def test_a_rank_that_did_not_come_back_is_missing_in_the_newest_attempt(tmp_path: Path) -> None:
    trained(world_size=3).write(tmp_path)
    again = Logs(world_size=3, attempt=1)
    for rank in again:
        rank.header.wall_ns += 1000 * SECOND_NS

    run = again.load(tmp_path, without=[2])

    assert (run.ranks, run.missing) == ((0, 1), (2,))


def test_a_second_launch_with_more_ranks_has_them_all(tmp_path: Path) -> None:
    trained(world_size=1).write(tmp_path)
    larger = trained(world_size=2)
    for rank, name in zip(larger, ("rank00000.attempt1.jsonl", "rank00001.jsonl"), strict=True):
        rank.header.wall_ns += (1000 + rank.rank) * SECOND_NS
        (tmp_path / name).write_bytes(rank.written())

    run = load(tmp_path)

    assert (run.ranks, run.world_size, run.missing) == ((0, 1), 2, ())


def test_two_processes_that_claim_one_rank_are_told(tmp_path: Path) -> None:
    logs = trained()
    rival = trained()[0]
    rival.header.pid = 9
    logs[0].sleep(100).pulse()
    (logs.write(tmp_path) / "rank00000.attempt1.jsonl").write_bytes(rival.written())
    rival.header.wall_ns += SECOND_NS
    (tmp_path / "rank00000.attempt1.jsonl").write_bytes(rival.written())

    run = load(tmp_path)

    assert run.quality.doubled_ranks == {0: (9, 1000)}
    assert (run.ranks, run.attempt) == ((0, 1), 0)


def test_joined_logs_are_refused(tmp_path: Path) -> None:
    logs = trained()
    (tmp_path / "rank00000.jsonl").write_bytes(logs[0].written() + logs[1].written())

    assert "two processes" in refused(tmp_path).message


def test_a_log_without_its_header_is_read_and_told(tmp_path: Path) -> None:
    logs = trained()
    logs[1].records = logs[1].records[1:]

    run = logs.load(tmp_path)

    assert run.ranks == (0, 1)
    assert run.quality.headerless_ranks == (1,)
    assert run.calls.groupby("rank")["start_ns"].min().nunique() == 1


def test_ranks_that_disagree_on_the_world_are_told(tmp_path: Path) -> None:
    logs = trained()
    logs[1].header.world_size = 3

    run = logs.load(tmp_path)

    assert run.quality.world_sizes == (2, 3)
    assert run.missing == (2,)


def test_a_directory_whose_name_looks_like_a_pattern_is_read(tmp_path: Path) -> None:
    directory = tmp_path / "run[1]*'quoted'"

    assert trained().load(directory).ranks == (0, 1)


def test_unreadable_permissions_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained().write(tmp_path)

    def denied(_: Path) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr("distdiag.run.logfiles.segments_of", denied)  # root may read everything

    assert "Permission denied" in refused(tmp_path).message


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 2500), tail=st.binary(max_size=40))
def test_a_log_cut_anywhere_and_ended_by_anything_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, cut: int, tail: bytes
) -> None:
    directory = trained().write(tmp_path_factory.mktemp("logs"))
    file = directory / "rank00001.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:cut] + tail)

    run = load(directory)

    read = len(run.calls[run.calls["rank"] == 1])
    assert read >= whole[:cut].count(b'{"kind":"call"') - (2 if b"\0" in tail else 1)
    assert run.ranks in ((0,), (0, 1))


def test_an_event_of_every_kind_is_read_back(tmp_path: Path) -> None:
    logs = Logs(world_size=1)
    rank = logs[0]
    rank.all_reduce()
    rank.batch()
    rank.end_phase("load", rank.begin_phase("load"))
    rank.end_step().pulse().exit()
    rank.add(
        events.Memory(time_ns=rank.now_ns, rss_bytes=5),
        events.Numerics(step=0, time_ns=rank.now_ns, loss="nan"),
        events.Stack(time_ns=rank.now_ns, reason="stall", source="python", threads=[]),
        events.GarbageCollection(time_ns=rank.now_ns, duration_ns=1, generation=0),
        events.Compile(time_ns=rank.now_ns, duration_ns=1),
        events.Decision(name="skip", value=[1, {"a": None}], time_ns=rank.now_ns),
        events.Caught(time_ns=rank.now_ns, type="OSError", message="no such shard"),
        events.Dropped(time_ns=rank.now_ns, reason="cap", records=3),
        events.Replay(time_ns=rank.now_ns, calls=[1, 1]),
        events.Status(group="0", time_ns=rank.now_ns, last_completed=1),
        events.Loader(loader=1, time_ns=rank.now_ns),
        events.Wrapper(wrapper=1, name="DistributedDataParallel", group="0", time_ns=rank.now_ns),
    )

    run = logs.load(tmp_path)

    kinds = {type(record) for record in rank.records}
    assert kinds == set(events.EVENTS)
    more = (run.headers, run.replays, run.statuses, run.loaders, run.wrappers)
    frames = (*more, run.memory, run.numerics, run.stacks, run.gc, run.compiles, run.decisions, run.dropped)
    assert all(len(frame) == 1 for frame in frames)
    assert run.quality.dropped_records == {0: 3}
    assert dataclasses.asdict(run.quality)["undecodable_lines"] == {}
