"""One pipeline stage takes longer than the others.

What it means
    A pipeline runs at the pace of its slowest stage; all others wait for it at every microbatch. Mostly it is the
    last one, which computes the loss and the projection onto the vocabulary beside its layers.

How it is found
    In logs of our own, stages are chains of ranks that send to one another. A stage's own time of a step, without what
    calls held it up, is at least 10 % of the step and 5 ms longer than that of the others, in at least 80 % of the
    steps. A stage of a single rank may also be a slow rank: that is said.
    From tables of operations the steps are simulated again with the operations of one stage at their usual time.
    The last stage is named where that takes away at least half of what is lost and a microbatch takes it longer
    than the others; else the stage that explains the most. A single slow worker explains its stage first.

What to do
    Move layers from that stage to the others, count the loss and the embeddings as layers when you divide them.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import counted, named, seconds
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.performance import accusations
from distdiag.analyzers.performance.pipeline import is_folded
from distdiag.analyzers.slowness.judged import judge
from distdiag.analyzers.slowness.stages import HeavyStage, heavy_stage
from distdiag.analyzers.slowness.telling import gained
from distdiag.findings import Confidence, Finding, Severity
from distdiag.run import Run

CODE = "DD204"
NAME = "stage-imbalance"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield what is found of a pipeline stage that holds the others up."""
    yield from accusations.heavy_stage(run, CODE, NAME)
    heavy = heavy_stage(judge(run).roles)
    if heavy is not None:
        yield _recorded(run, heavy)


def _recorded(run: Run, heavy: HeavyStage) -> Finding:
    """Return the finding from the recorded steps of all ranks."""
    folded = is_folded(run)
    is_last = heavy.stage == 0 if folded else heavy.is_last
    called = f"the last pipeline stage ({heavy.stage})" if is_last else f"pipeline stage {heavy.stage}"
    if folded:
        both = f"pipeline stages {heavy.stage} and {2 * heavy.stages - 1 - heavy.stage}"
        called = f"{named(heavy.ranks)} with {both}{', the last one,' if is_last else ''}"
    alone = len(heavy.ranks) == 1
    return Finding(
        code=CODE,
        name=NAME,
        severity=Severity.WARNING,
        summary=f"{called} computes {seconds(heavy.own_ns)} in a step, the others {seconds(heavy.typical_ns)} "
        f"({heavy.own_ns / max(heavy.typical_ns, 1.0):.1f}x): they wait for {named(heavy.ranks)}\n"
        f"With layers moved to the others, {gained(heavy.gain_ns, heavy.step_ns)}.",
        culprits=heavy.ranks,
        victims=heavy.others,
        cause="last-stage" if is_last else "stage",
        confidence=Confidence.MEDIUM if alone else Confidence.HIGH,
        evidence=(
            f"in {heavy.late_steps} of {counted(heavy.steps, 'step')} it takes the longest by far",
            *(("the stage has one rank: a slow device would look the same",) if alone else ()),
            data_in_words(run),
        ),
        action=(
            f"give {named(heavy.ranks) if folded else f'stage {heavy.stage}'} fewer layers"
            + (": its loss and vocabulary projection count as layers too" if is_last else ""),
            *((f"to rule the machine out, run {named(heavy.ranks)} on another host",) if alone else ()),
        ),
        lost_share=heavy.gain_ns / heavy.step_ns if heavy.step_ns else None,
    )
