"""A run as a trace: slices, the arrows between those that belong together, findings, and what is left out."""

import gzip
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from distdiag.analyzers import diagnose
from distdiag.commands.trace import command
from distdiag.errors import DistdiagError
from distdiag.reporters import timeline
from distdiag.reporters.timeline import Selection
from distdiag.run import Run
from tests.logs import Logs

Items = list[dict[str, Any]]


def stuck(steps: int = 3) -> Logs:
    """Return logs of four ranks of which the last one leaves out its last call."""
    logs = Logs(world_size=4)
    for step in range(steps):
        for rank in logs:
            rank.step = step
            if rank.rank < 3 or step < steps - 1:
                rank.all_reduce("train.py:10 step", pending=step == steps - 1)
    for rank in logs.but(3):
        rank.pulses("train.py:10 step", seconds=30, waiting=[steps])
    logs[3].data_loading("data.py:5 load")
    return logs


def trace(run: Run, selection: Selection | None = None) -> Items:
    out = io.BytesIO()
    timeline.render(run, diagnose(run), selection or Selection(), out)
    items: Items = json.loads(out.getvalue())["traceEvents"]
    return items


def slices(items: Items) -> Items:
    return [item for item in items if item["ph"] == "X"]


def test_every_call_is_a_slice_of_its_rank_and_one_that_never_ended_says_so(tmp_path: Path) -> None:
    drawn = slices(trace(stuck().load(tmp_path)))

    assert Counter(item["pid"] for item in drawn) == {0: 3, 1: 3, 2: 3, 3: 2}
    assert [item["name"] for item in drawn if item["pid"] == 0][-1] == "all_reduce 3 (never ended)"
    assert all(item["ts"] >= 0 and item["dur"] >= 0 for item in drawn)


def test_arrows_lead_from_the_first_to_arrive_to_the_last(tmp_path: Path) -> None:
    logs = Logs(world_size=3)
    for rank, late in zip(logs, (0.2, 0.0, 0.1), strict=True):
        rank.sleep(late)
        rank.all_reduce("train.py:10 step")

    flows = [item for item in trace(logs.load(tmp_path)) if item["ph"] in "stf"]

    assert {item["ph"]: item["pid"] for item in flows} == {"s": 1, "t": 2, "f": 0}
    assert len({item["id"] for item in flows}) == 1


def test_findings_stand_at_their_step(tmp_path: Path) -> None:
    items = trace(stuck().load(tmp_path))

    found = [item for item in items if item["ph"] == "i" and item["name"].startswith("DD301")]
    last_begin = max(item["ts"] for item in slices(items))
    assert len(found) == 1
    assert found[0]["pid"] == 3
    assert found[0]["ts"] == pytest.approx(last_begin, abs=5000)


def test_a_selection_leaves_out_other_steps_and_ranks(tmp_path: Path) -> None:
    drawn = slices(trace(stuck(6).load(tmp_path), Selection(first_step=2, last_step=3, ranks=frozenset({1, 2}))))

    assert {(item["pid"], item["args"]["step"]) for item in drawn} == {(1, 2), (1, 3), (2, 2), (2, 3)}


def test_of_too_many_calls_the_newest_steps_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = stuck(6).load(tmp_path)
    monkeypatch.setattr(timeline, "MOST_CALLS", 8)
    drawn = timeline.render(run, diagnose(run), Selection(), io.BytesIO())

    assert (drawn.first_step, drawn.calls, drawn.left_out) == (4, 7, 16)


def test_calls_that_overlap_lie_on_tracks_of_their_own(tmp_path: Path) -> None:
    logs = Logs(world_size=2)
    for rank in logs:
        rank.all_reduce("train.py:10 step", pending=True)
        rank.all_reduce("train.py:11 step", pending=True)
        rank.pulses("train.py:11 step", seconds=30)

    drawn = slices(trace(logs.load(tmp_path)))

    assert len({item["tid"] for item in drawn if item["pid"] == 0}) == 2


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_the_command_writes_what_its_ending_says(tmp_path: Path, name: str) -> None:
    stuck().write(tmp_path / "logs")
    output = tmp_path / name

    done = CliRunner().invoke(command, [str(tmp_path / "logs"), "-o", str(output)], standalone_mode=False)

    assert done.exception is None
    assert "11 calls, steps 0 to 2" in done.output
    data = output.read_bytes()
    assert json.loads(gzip.decompress(data) if name.endswith("gz") else data)["otherData"]["verdict"] == "rank-missing"


@pytest.mark.parametrize("arguments", [["--steps", "5:1"], ["--steps", "x"], ["--ranks", "1-"]])
def test_a_bad_selection_is_bad_usage(tmp_path: Path, arguments: list[str]) -> None:
    done = CliRunner().invoke(command, [str(tmp_path), *arguments])

    assert done.exit_code == 2


def test_a_rank_without_a_log_is_named(tmp_path: Path) -> None:
    stuck().write(tmp_path)

    done = CliRunner().invoke(command, [str(tmp_path), "--ranks", "2,9"], standalone_mode=False)

    assert isinstance(done.exception, DistdiagError)
    assert "no log of rank 9" in done.exception.message
