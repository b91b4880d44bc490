"""The screen of a watched job: what matters first, in the columns and lines that there are."""

from pathlib import Path

import pytest

from distdiag.commands._screen import DOWN, ESCAPE, after
from distdiag.live.snapshot import Snapshot, detail_of, snapshot_of
from distdiag.reporters._lines import plain
from distdiag.reporters.live import Choice, plain_view, screen, shown_ranks
from tests.watching import Watched


def stalled(directory: Path, ranks: int = 4) -> tuple[Watched, Snapshot]:
    """A job in which the last rank but one is stuck in its data loader."""
    watched = Watched(directory, world_size=ranks)
    watched.train(steps=12, facts={"tokens": 100, "total_steps": 40}, own={1: 0.15})
    stuck = ranks - 2
    for log in watched.logs.but(stuck):
        log.all_reduce("/job/train.py:10 step", pending=True)
    watched.logs[stuck].batch("/job/data.py:8 read", pending=True)
    watched.look()
    watched.pass_by(9, waiting=(13,))
    return watched, snapshot_of(watched.watch, wall_ns=0)


def text(snapshot: Snapshot, choice: Choice, width: int = 80, height: int = 24) -> list[str]:
    return [plain(line) for line in screen(snapshot, choice, width, height)]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50), (60, 10)])
def test_screen_fits_and_says_first_what_is_wrong(tmp_path: Path, width: int, height: int) -> None:
    _, snapshot = stalled(tmp_path)

    lines = text(snapshot, Choice(), width, height)

    assert len(lines) == height
    assert max(map(len, lines)) <= width
    assert "STALL no rank made progress" in lines[1]
    assert "rank 2 is in its data loader" in " ".join(lines[1:4])


def test_rank_in_trouble_comes_first(tmp_path: Path) -> None:
    _, snapshot = stalled(tmp_path)

    lines = text(snapshot, Choice())

    heading = next(number for number, line in enumerate(lines) if line.startswith("rank  step"))
    assert lines[heading + 1].split()[:3] == ["2", "12", "stalled"]


def test_job_line_tells_rates_and_time_left(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.train(steps=20, facts={"tokens": 100, "total_steps": 120})
    watched.look()

    first = text(snapshot_of(watched.watch), Choice())[0]

    assert "2/2 ranks  step 20  10 steps/s" in first
    assert "tokens/s" in first
    assert "10.0 s left" in first


def test_slow_rank_stands_out_in_the_strip(tmp_path: Path) -> None:
    watched = Watched(tmp_path, world_size=3)
    watched.train(steps=10)
    watched.train(steps=5, own={1: 0.2})
    watched.look()

    lines = text(snapshot_of(watched.watch), Choice(sort="rank"))

    strips = [line for line in lines if line.endswith("|")]
    assert strips[1] == f"{1:>6}  |{' ' * 10}@@@@@|"
    assert "@" not in strips[0] + strips[2]


def test_hundreds_of_ranks_are_folded_by_node_the_worst_first(tmp_path: Path) -> None:
    watched = Watched(tmp_path, world_size=256)
    for log in watched.logs:
        log.header.host = f"node{log.rank // 8}"
    watched.train(steps=8, own={77: 0.3})
    watched.look()
    snapshot = snapshot_of(watched.watch)

    lines = text(snapshot, Choice())

    assert len(shown_ranks(snapshot, Choice())) == 32
    assert next(line for line in lines if line.startswith("node9")).split()[:3] == ["node9", "(8)", "77"]
    assert lines.index(next(line for line in lines if line.startswith("node9"))) == 4
    assert any("more nodes" in line for line in lines)


def test_filter_leaves_only_what_matches(tmp_path: Path) -> None:
    _, snapshot = stalled(tmp_path)

    rows = shown_ranks(snapshot, Choice(filter="data loader"))

    assert [row.rank for row in rows] == [2]


def test_opened_rank_shows_its_place_and_what_it_said(tmp_path: Path) -> None:
    watched, snapshot = stalled(tmp_path)

    lines = [plain(line) for line in screen(snapshot, Choice(opened=2), 80, 24, detail_of(watched.watch.job, 2))]

    assert any("rank 2 on node0" in line for line in lines)
    assert any("train.py:12 main" in line for line in lines)
    assert any("tokens=100" in line for line in lines)
    assert any("no stack yet" in line for line in lines)


def test_plain_view_holds_all_ranks_and_no_keys(tmp_path: Path) -> None:
    _, snapshot = stalled(tmp_path, ranks=40)

    lines = [plain(line) for line in plain_view(snapshot, 120)]

    assert sum(" node0 " in line for line in lines) == 40
    assert not any("q quit" in line for line in lines)
    assert any(line.startswith("alarm   stall for") for line in lines)


def typed(snapshot: Snapshot, *keys: str) -> Choice | None:
    choice: Choice | None = Choice()
    for key in keys:
        assert choice is not None
        choice = after(choice, key, snapshot)
    return choice


def test_keys_choose_open_and_leave(tmp_path: Path) -> None:
    _, snapshot = stalled(tmp_path)

    opened = typed(snapshot, "s", DOWN[0], "\r")
    closed = typed(snapshot, "s", DOWN[0], "\r", ESCAPE)

    assert opened is not None
    assert (opened.sort, opened.opened) == ("rank", 1)
    assert closed is not None
    assert closed.opened is None
    assert typed(snapshot, "q") is None


def test_filter_is_typed_and_taken_back(tmp_path: Path) -> None:
    _, snapshot = stalled(tmp_path)

    choice = typed(snapshot, "f", *"qx", "\x7f", "\r")

    assert choice is not None
    assert (choice.filter, choice.typing) == ("q", False)
    gone = after(choice, ESCAPE, snapshot)
    assert gone is not None
    assert gone.filter == ""


def test_pause_is_said(tmp_path: Path) -> None:
    _, snapshot = stalled(tmp_path)

    choice = typed(snapshot, "p")

    assert choice is not None
    assert "PAUSED" in text(snapshot, choice)[0]
