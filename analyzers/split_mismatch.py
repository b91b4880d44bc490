"""What one rank sends in an all_to_all is not what the other expects.

What it means
    In an all_to_all every rank says how much it sends to each other rank and how much it expects from each. Where
    two of these numbers differ, NCCL hangs and gloo aborts a rank, even if the totals agree.

How it is found
    For every pair of ranks what the first sends is compared with what the second expects. The rank in most of the
    pairs that do not fit is named; between two ranks there is none.

What to do
    Exchange the input splits first, and make the output splits from what the others sent.
"""

from collections.abc import Iterator

from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.investigation.incident import Incident
from distdiag.analyzers.investigation.splits import SplitMismatch
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD309"
NAME = "split-mismatch"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the first exchange that does not fit together."""
    for incident in investigate(run).named(NAME):
        if isinstance(incident.basis, SplitMismatch):
            yield incident.finding(CODE, _summary(incident, incident.basis), _action(incident))


def _summary(incident: Incident, mismatch: SplitMismatch) -> str:
    sender, receiver = mismatch.sender.rank, mismatch.receiver.rank
    return (
        f"rank {sender} sends {mismatch.sent} to rank {receiver} in {incident.operation}{incident.at_step}, "
        f"but rank {receiver} expects {mismatch.expected} from it\n"
        f"What one rank sends to another has to be what that one expects, pair by pair; equal totals do not suffice."
    )


def _action(incident: Incident) -> tuple[str, ...]:
    site = incident.site or "that call"
    return (f"exchange the input splits before {site} and make the output splits from them",)
