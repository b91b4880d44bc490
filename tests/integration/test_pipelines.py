"""Pipelines on real ranks, of PyTorch and by hand: schedule, stages and a longer last stage are told."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from distdiag.analyzers import diagnose
from distdiag.run import load
from tests.ranks import launch

WORKER = Path(__file__).parents[1] / "faults" / "pipelines.py"
OF_CHANCE = 0.15
"""By how much of its time a pipeline of sleeping stages may stand idle beyond its formula on a busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    program: str
    schedule: str
    stages: int
    microbatches: int
    chunks: int = 1
    copies: int = 1
    heavy: float = 1.0

    def __str__(self) -> str:
        return f"{self.program}-p{self.stages}-m{self.microbatches}{'-heavy' if self.heavy > 1 else ''}"


CASES = (
    Case(program="gpipe", schedule="GPipe", stages=2, microbatches=4),
    Case(program="gpipe", schedule="GPipe", stages=4, microbatches=8, heavy=1.6),
    Case(program="one_forward_one_backward", schedule="1F1B", stages=4, microbatches=4),
    Case(program="one_forward_one_backward", schedule="1F1B", stages=4, microbatches=8, heavy=1.6),
    Case(program="one_forward_one_backward", schedule="1F1B", stages=2, microbatches=8, heavy=1.6),
    Case(program="interleaved", schedule="interleaved 1F1B", stages=2, microbatches=4, chunks=2),
    Case(program="interleaved", schedule="interleaved 1F1B", stages=4, microbatches=8, chunks=2, heavy=1.6),
    Case(program="beside_rings", schedule="1F1B", stages=2, microbatches=4, copies=2),
    Case(program="beside_rings", schedule="1F1B", stages=2, microbatches=4, copies=2, heavy=1.6),
    Case(program="by_hand", schedule="1F1B", stages=4, microbatches=8),
    Case(program="by_hand", schedule="1F1B", stages=2, microbatches=4, copies=2, heavy=1.6),
)


SPLIT = (
    Case(program="zero_bubble", schedule="interleaved zero bubble", stages=4, microbatches=8, chunks=2),
    Case(program="zero_bubble", schedule="interleaved zero bubble", stages=2, microbatches=4, chunks=2, heavy=1.6),
    Case(program="zero_bubble_v", schedule="ZBV zero bubble", stages=2, microbatches=4, chunks=2),
    Case(program="zero_bubble_v", schedule="ZBV zero bubble", stages=4, microbatches=8, chunks=2, heavy=1.6),
    Case(program="dual_pipe_v", schedule="DualPipeV", stages=4, microbatches=8, chunks=2),
    Case(program="dual_pipe_v", schedule="DualPipeV", stages=2, microbatches=4, chunks=2, heavy=1.6),
)
"""Schedules that split backwards."""
FOLDED = ("zero_bubble_v", "dual_pipe_v")
"""Their first rank holds the last stage, too."""


def report_of(case: Case, directory: Path) -> Any:
    program = f"import sys\nsys.argv[1:] = [{case.program!r}]\nexec(open({str(WORKER)!r}).read())\n"
    variables = {
        "PG_TIMEOUT": "40",
        "STEPS": "14",
        "MICROBATCHES": str(case.microbatches),
        "CHUNKS": str(case.chunks),
        "REPLICAS": str(case.copies),
        "HEAVY": str(case.heavy),
        "FORWARD": "0.008",
        "BACKWARD": "0.016",
    }
    ended = launch(program, directory, world_size=case.stages * case.copies, variables=variables, forked=True)
    assert {each.code for each in ended} == {0}, ended[-1].stderr
    return diagnose(load(directory / "logs"))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pipeline_is_recognised_and_a_longer_last_stage_named(case: Case, tmp_path: Path) -> None:
    report = report_of(case, tmp_path)

    found = report.performance["pipeline"]
    assert (found["schedule"], found["why_unknown"]) == (case.schedule, None)
    assert (found["stages"], found["microbatches"]) == (case.stages, case.microbatches)
    assert (found["virtual_stages"], found["copies"]) == (case.chunks, case.copies)
    ranks = [list(range(stage * case.copies, (stage + 1) * case.copies)) for stage in range(case.stages)]
    assert [each["ranks"] for each in found["per_stage"]] == ranks
    bubble, named = found["bubble"], [(each.name, list(each.culprits)) for each in report.findings]
    if case.heavy > 1:
        assert named == [("stage-imbalance", ranks[-1])], found
        assert report.findings[0].cause == "last-stage"
        assert bubble["imbalance"] > 0.05, found
    else:
        assert named == [], found
        assert bubble["formula"] - 0.02 <= bubble["measured"] <= bubble["formula"] + OF_CHANCE, found


@pytest.mark.parametrize("case", SPLIT, ids=str)
def test_schedule_that_splits_backwards_has_its_name_and_no_formula(case: Case, tmp_path: Path) -> None:
    report = report_of(case, tmp_path)

    found = report.performance["pipeline"]
    assert (found["schedule"], found["why_unknown"]) == (case.schedule, None)
    assert (found["stages"], found["microbatches"], found["virtual_stages"]) == (case.stages, case.microbatches, 2)
    assert (found["bubble"]["formula"], found["with_more_microbatches"]) == (None, [])
    assert 0.0 < found["bubble"]["measured"] < 1.0
    named = [(each.name, each.culprits, each.cause) for each in report.findings]
    last = 0 if case.program in FOLDED else case.stages - 1
    assert named == ([("stage-imbalance", (last,), "last-stage")] if case.heavy > 1 else []), found
