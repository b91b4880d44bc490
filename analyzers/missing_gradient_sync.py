"""Gradients of an optimizer's step were not averaged with those of the peers.

What it means
    Each rank stepped with the gradients of its own samples alone. The replicas go apart from that step on: the job
    trains as many models as it has ranks, each on its share of the data, and saves one of them.

How it is found
    The last forward before the step ran under ``no_sync()``, or the model was called without its wrapper, and no call
    of the step carried as many bytes as the gradients have. Where replicas are equal afterwards nothing is reported,
    unless broadcasts alone made them so, as those of an optimizer whose ranks change a share each. Nor is it where
    ranks make some steps of their own and then average their parameters. Parameters that an optimizer trains beside
    a wrapped model, or that the script leaves out when it averages others' gradients by itself, and that were equal
    on all ranks until they went apart, are mentioned.

What to do
    Under gradient accumulation leave ``no_sync()`` for the last forward and backward before ``optimizer.step()``: what
    counts is the forward. Call the wrapper, not ``model.module``.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import counted, named
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.training.checksums import Desync, desyncs, gone_apart_beside
from distdiag.analyzers.training.gradients import Unsynchronised, unsynchronised
from distdiag.analyzers.training.peers import data_parallel
from distdiag.findings import Confidence, Finding, Severity
from distdiag.replicas import name_of
from distdiag.run import Run

CODE = "DD505"
NAME = "missing-gradient-sync"
OUTSIDE = "outside"
REASONS = {
    "no_sync": "The last forward before the step ran under no_sync(), so that DDP did not average",
    "bypassed": "The model was called without its DDP wrapper, and nothing else averaged the gradients",
}
HANDED_ON = (
    " Each parameter is then handed to all by the rank that changed it: replicas stay equal, but learn each from the "
    "samples of one rank."
)
ACTIONS = {
    "no_sync": "leave no_sync() for the last forward and backward before optimizer.step(); what counts is the forward",
    "bypassed": "call the DDP wrapper itself, not its .module, in the training loop",
}


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the first group that stepped with gradients of single ranks."""
    for apart in unsynchronised(run)[:1]:
        yield _finding(run, apart)
    for desync in gone_apart_beside(run)[:1]:
        yield _beside(run, desync)


def _finding(run: Run, apart: Unsynchronised) -> Finding:
    some = set(apart.ranks) < set(apart.group.members)
    desync = next((each for each in desyncs(run) if each.group.members == apart.group.members), None)
    return Finding(
        code=CODE,
        name=NAME,
        severity=Severity.ERROR,
        summary=(
            f"{named(apart.ranks)} stepped with gradients that no peer was asked for, in "
            f"{apart.steps} of {counted(apart.of_steps, 'step')}, first in step {apart.step}\n"
            f"{REASONS[apart.reason]}.{HANDED_ON if apart.handed_on else _consequence(desync)}"
        ),
        culprits=apart.ranks if some else (),
        group=apart.group.group,
        step=apart.step,
        cause=apart.reason,
        confidence=Confidence.HIGH if desync is not None else Confidence.MEDIUM,
        evidence=(
            f"{apart.group.size_bytes:,} bytes of gradients, and no call of that size on a group with all its ranks",
            data_in_words(run),
        ),
        action=(
            ACTIONS[apart.reason],
            *(() if apart.handed_on else ("do not save from this state: each rank holds another model",)),
        ),
    )


def _beside(run: Run, desync: Desync) -> Finding:
    """Say what nobody averages; no more than said, for ranks may rightly have heads or experts of their own."""
    ranks, found = named(desync.group.members), desync.found
    parameters = counted(len(found.differing), "parameter")
    wrapped = any(desync.group.members == each.members for each in data_parallel(run))
    beside = " beside the DDP model" if wrapped else ""
    return Finding(
        code=CODE,
        name=NAME,
        severity=Severity.INFO,
        summary=(
            f"{parameters} that the optimizer trains{beside} began equal on {ranks} and "
            f"{'differs' if len(found.differing) == 1 else 'differ'} from step {desync.step} on\n"
            f"Nothing averages their gradients; if each rank is meant to have its own, this is in order."
        ),
        group=desync.group.group,
        step=desync.step,
        cause=OUTSIDE,
        confidence=Confidence.MEDIUM,
        evidence=(
            f"first of them: {name_of(desync.group.names, found)} of the optimizer's"
            f"{', those of DDP left out' if wrapped else ''}",
            data_in_words(run),
        ),
        action=(
            "call the whole model, heads and losses with weights included, through one DDP wrapper"
            if wrapped
            else "average all gradients: wrap the model in DDP, or look at what the loop over parameters leaves out",
        ),
    )


def _consequence(desync: Desync | None) -> str:
    if desync is None:
        return ""
    found = desync.found
    return f" Replicas differ from step {desync.step} on, in {len(found.differing)} of {found.parameters} parameters."
