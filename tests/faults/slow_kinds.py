"""All programs that train slowly, with the truth about them, and busy ones that are well; what a report is worth."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from distdiag.findings import Severity
from tests.faults import hosts
from tests.faults.runs import Fault, Outcome, complaints_of

HERE = Path(__file__).parent
BESIDE = HERE.parents[2] / "shared" / "faults" / "worker.py"
SLOW_CODES = "DD2"
RIGHT, WRONG, ABSTAINED = "right", "wrong", "abstained"


class Judgement(NamedTuple):
    """What a report on a program is worth: ``right``, ``wrong`` or ``abstained``, and why."""

    answer: str
    why: str


def _own(name: str, ranks: int, verdict: str, *culprits: int, **more: Any) -> Fault:
    return Fault(name=name, worker=HERE / "slow.py", ranks=ranks, verdicts=(verdict,), culprits=culprits, **more)


def _unusual(name: str, ranks: int, verdict: str, *culprits: int, **more: Any) -> Fault:
    return Fault(name=name, worker=HERE / "unusual.py", ranks=ranks, verdicts=(verdict,), culprits=culprits, **more)


def _beside(name: str, ranks: int, verdicts: tuple[str, ...], *culprits: int) -> Fault:
    return Fault(name=name, worker=BESIDE, ranks=ranks, verdicts=verdicts, culprits=culprits)


def _of_hosts() -> Iterator[Fault]:
    if hosts.are_possible():
        yield _own("slow_link", 6, "slow-link", 4, 5, cause="link", mentions="(hosts node4, node5)")


OWN = (
    _own("slow_backward", 3, "compute-straggler", 1, cause="backward"),
    _own("slow_forward", 3, "compute-straggler", 2, cause="forward"),
    _own("slow_reading", 3, "input-straggler", 2, cause="data"),
    _own("slow_data", 2, "data-starvation", cause="data"),
    _own("one_saves", 3, "checkpoint-stall", 0, cause="one-rank-writes"),
    _own("uneven_lengths", 3, "token-imbalance", cause="lengths"),
    _own("uneven_experts", 4, "token-imbalance", 2, cause="experts", mentions="always get the most tokens"),
    _own("moving_experts", 4, "token-imbalance", cause="experts"),
    _own("last_stage", 3, "stage-imbalance", 2, cause="last-stage"),
    _unusual("evaluated_on_one", 3, "compute-straggler", 0, cause="other"),
    _unusual("throttled", 3, "compute-straggler", 1, cause="forward"),
    _unusual("slow_host", 4, "compute-straggler", 1, 2, cause="forward", mentions="without them"),
    _unusual("new_shapes", 2, "recompilation"),
    *_of_hosts(),
)
CONTROLS = (
    _own("healthy_work", 3, "healthy"),
    _own("healthy_collections", 3, "healthy"),
    _own("healthy_hiccup", 3, "healthy"),
    _own("healthy_experts", 4, "healthy"),
    _own("healthy_metrics", 3, "healthy"),
    _unusual("healthy_logs", 3, "healthy"),
)
OF_OTHERS = (
    _beside("straggler", 3, ("compute-straggler", "input-straggler"), 1),
    _beside("moving_straggler", 3, ("token-imbalance",)),
    _beside("garbage_collection", 3, ("gc-pause",), 1),
    _beside("tiny_collectives", 2, ("tiny-collectives",)),
)
ALL = OWN + CONTROLS + (OF_OTHERS if BESIDE.exists() else ())


def judged(fault: Fault, outcome: Outcome) -> Judgement:
    """Return what a report is worth: the first slow finding has to name cause and ranks, and none any other rank."""
    if fault.is_healthy:
        complaints = complaints_of(fault, outcome)
        return Judgement(WRONG, "; ".join(complaints)) if complaints else Judgement(RIGHT, "")
    if set(outcome.codes) != {0}:
        return Judgement(WRONG, f"exit codes {outcome.codes}")
    findings = [each for each in outcome.report.findings if each.severity is not Severity.INFO]
    slow = [each for each in findings if each.code.startswith(SLOW_CODES)]
    if not slow:
        verdict = outcome.report.verdict.name
        return Judgement(ABSTAINED, "") if verdict == "healthy" else Judgement(WRONG, f"{verdict} alone")
    first, said = slow[0], [(each.name, each.culprits, each.cause) for each in slow]
    right = first.name in fault.verdicts and first.culprits == fault.culprits and fault.cause in (None, first.cause)
    others = {rank for each in slow for rank in each.culprits} - set(fault.culprits or ())
    mentioned = fault.mentions in first.summary
    return Judgement(RIGHT, "") if right and mentioned and not others else Judgement(WRONG, str(said))
