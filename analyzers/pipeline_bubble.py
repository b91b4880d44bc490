"""Stages of a pipeline stand idle, and neither a longer stage nor a slow rank is the reason.

What it means
    Every schedule leaves its stages idle while the pipeline fills and drains: (p-1)/(m+p-1) of the time with p stages
    and m micro-batches, (p-1)/(v*m+p-1) where each rank holds v stages. Where there are fewer micro-batches than
    stages, the pipeline is never full, and that is more than half of the time. Sending and receiving add to it where
    nothing is computed meanwhile.

How it is found
    Stages, micro-batches and schedule (GPipe, 1F1B, interleaved 1F1B) are told from the messages between ranks; of
    other schedules, also of PyTorch's that split backwards, only how long stages stand idle is said. Idle is what
    messages hold a rank up, and its waiting in collectives across stages. It is a warning where messages whose two
    sides were there take at least 20 % of the pipeline's time and half of what is idle beyond the formula, in
    messages of 64 KiB or more on average: of small ones latency is all. It is a remark where there are fewer
    micro-batches than stages. Stages of different length are `stage-imbalance`.

What to do
    Cut the batch into more micro-batches, as many as memory allows with 1F1B, which keeps p of them and not m; let
    each rank hold several stages (interleaved). Let messages overlap computing, send 16 bits, keep neighbouring
    stages on one host or on a faster link.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import counted, seconds
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.performance.pipeline import Pipeline, pipeline_of
from distdiag.analyzers.performance.pipeline.bubble import MESSAGES, Bubble, formula
from distdiag.analyzers.slowness.judged import judge
from distdiag.analyzers.slowness.telling import percent
from distdiag.findings import Finding, Severity
from distdiag.run import Run

CODE = "DD205"
NAME = "pipeline-bubble"
ENOUGH_STEPS = 10
LEAST_STEP_NS = 50e6
"""In shorter steps the start of a send is as long as what it carries."""
LONG_TRANSFERS = 0.2
OF_EXCESS = 0.5
LEAST_BYTES = 64 << 10
LARGE = 0.4
"""A bubble that is worth a remark, where more micro-batches would make it smaller."""
ENOUGH_TIMES = 4
"""Micro-batches for each stage, at which a fifth of the time is bubble."""


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding if the bubble comes from the messages themselves, or from too few micro-batches."""
    judged = judge(run)
    found = pipeline_of(run, judged.measured)
    if not isinstance(found, Pipeline) or found.bubble is None:
        return
    bubble = found.bubble
    if bubble.formula is None or bubble.steps < ENOUGH_STEPS or bubble.step_ns < LEAST_STEP_NS:
        return
    excess, moved = bubble.measured - bubble.formula, bubble.transfers or 0.0
    if moved >= max(LONG_TRANSFERS, OF_EXCESS * excess) and _message_bytes(run) >= LEAST_BYTES:
        yield _of_transfers(run, found, bubble, moved)
    elif (found.schedule.microbatches or 0) < len(bubble.stages) and bubble.measured >= LARGE:
        yield _of_few(run, found, bubble)


def _message_bytes(run: Run) -> float:
    """Return what messages carry on average."""
    sizes = run.calls.loc[run.calls["op"].isin(MESSAGES), "size_bytes"]
    return float(sizes.mean()) if len(sizes) else 0.0


def _of_transfers(run: Run, pipeline: Pipeline, bubble: Bubble, moved: float) -> Finding:
    return Finding(
        code=CODE,
        name=NAME,
        severity=Severity.WARNING,
        summary=f"sending between pipeline stages takes {percent(moved)} of their time, with both sides there: they "
        f"stand idle for {percent(bubble.measured)}, where {_called(pipeline)} has {percent(bubble.formula or 0.0)}\n"
        f"Hidden behind computing, a step of {seconds(bubble.step_ns)} would be about {percent(moved)} shorter.",
        cause="transfers",
        lost_share=moved,
        evidence=(_shares(bubble), f"messages carry {_message_bytes(run) / (1 << 20):.1f} MiB", data_in_words(run)),
        action=(
            "post receives before the computing that they can overlap, and do not wait for sends at once",
            "send activations and gradients in 16 bits; keep neighbouring stages on one host",
            "compare with what nccl-tests reach for sendrecv between these hosts",
        ),
    )


def _of_few(run: Run, pipeline: Pipeline, bubble: Bubble) -> Finding:
    schedule, stages = pipeline.schedule, len(bubble.stages)
    few = f"{schedule.microbatches} micro-batch{'' if schedule.microbatches == 1 else 'es'}"
    enough = ENOUGH_TIMES * stages
    then = formula(stages, enough, schedule.virtual_stages or 1)
    return Finding(
        code=CODE,
        name=NAME,
        severity=Severity.INFO,
        summary=f"{few} for {stages} pipeline "
        f"stages: the pipeline is never full, and its stages stand idle for {percent(bubble.measured)} of its time\n"
        f"With {enough} micro-batches {percent(then)} would be idle.",
        cause="few-microbatches",
        evidence=(_shares(bubble), data_in_words(run)),
        action=(
            f"cut the batch into {enough} micro-batches: with 1F1B a stage keeps at most {stages} of them in memory",
            "or let each rank hold several stages (interleaved 1F1B)",
        ),
    )


def _called(pipeline: Pipeline) -> str:
    schedule = pipeline.schedule
    return f"{schedule.name} with {schedule.microbatches} micro-batches on {len(pipeline.layout.stages)} stages"


def _shares(bubble: Bubble) -> str:
    parts = {"stages of different length": bubble.imbalance, "transfers": bubble.transfers, "the rest": bubble.rest}
    told = ", ".join(f"{what} {percent(share)}" for what, share in parts.items() if share is not None)
    return (
        f"idle over {counted(bubble.steps, 'step')}: {percent(bubble.measured)}; the formula gives "
        f"{percent(bubble.formula or 0.0)}, {told}"
    )
