"""Ranks passed tensors of different sizes to one call.

What it means
    A collective moves the same number of elements on every rank. Here the sizes differ: NCCL hangs, gloo aborts the
    rank with the smaller buffer, and now and then a rank goes on with a wrong tensor.

How it is found
    At one sequence number of a group the same operation comes from the same call site on all ranks, and the
    number of elements differs. Sends and receives are matched in order between the same two ranks, where recording
    saw all of them: a message is larger than its room, or smaller between lines whose messages fitted before.

What to do
    Find out why that tensor has another size on that rank: a local count, a missing parameter, another batch length.
    Pad to the largest size, or exchange the sizes first.
"""

from collections.abc import Iterator

from distdiag.analyzers._wording import counted, named
from distdiag.analyzers.investigation import investigate
from distdiag.analyzers.investigation.divergence import Divergence
from distdiag.analyzers.investigation.fits import Misfit
from distdiag.analyzers.investigation.incident import Disagreement, Incident
from distdiag.analyzers.investigation.issued import dims
from distdiag.analyzers.investigation.sizes import SizeMismatch, ToldSizes
from distdiag.analyzers.investigation.splits import SCATTER, SplitMismatch
from distdiag.analyzers.investigation.telling import at, both_sides
from distdiag.findings import Finding
from distdiag.run import Run

CODE = "DD307"
NAME = "shape-mismatch"
MOST_SIZES = 8
"""So many are told, each with its ranks."""
GATHERED = "The outputs of an all_gather have to be as large as what each rank passes in."
SCATTERED = "What a rank makes room for has to be as large as its part; nothing fails, and the rest is not written."

TOO_LARGE = "What is larger than its room does not arrive: the receiver aborts, or both sides hang"
TOO_SMALL = "The rest of the room is not written, where the backend does not hang"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the first call whose size differs."""
    for incident in investigate(run).named(NAME):
        yield incident.finding(CODE, _summary(incident), _action(incident))


def _summary(incident: Incident) -> str:
    basis = incident.basis
    if isinstance(basis, SplitMismatch):
        sender, receiver = basis.sender.rank, basis.receiver.rank
        return (
            f"rank {sender} passed {counted(basis.sent, 'element')} to {incident.operation}{incident.at_step}, "
            f"rank {receiver} made room for {basis.expected}\n" + (SCATTERED if incident.op == SCATTER else GATHERED)
        )
    if isinstance(basis, ToldSizes):
        return (
            f"rank {basis.rank} was sent {basis.received_bytes} bytes in a collective "
            f"where it had room for {basis.expected_bytes}\n"
            "Which of the two sizes is the wrong one, the message does not say."
        )
    if isinstance(basis, SizeMismatch):
        who = f" on {named(incident.culprits)}" if incident.culprits else ""
        return f"the sizes of {incident.operation}{incident.at_step} cannot be{who}\n{basis.why}."
    if isinstance(basis, Misfit):
        return f"{basis.said}{incident.at_step}\n{TOO_LARGE if basis.larger else TOO_SMALL}; {basis.before}."
    if not isinstance(basis, Disagreement):
        return incident.operation
    d = basis.divergence
    if not incident.culprits and len(sizes := _sizes_of_all(d)) > 2:
        told = ", ".join(f"{named(ranks)} {size}" for size, ranks in list(sizes.items())[:MOST_SIZES])
        return (
            f"the ranks passed {len(sizes)} different sizes to {incident.operation}{incident.at_step}\n"
            f"{told}{'' if len(sizes) <= MOST_SIZES else ', ...'}{at(incident, d.others)}."
        )
    made, expected = (f"size {dims(call.shapes)}" if call is not None else "nothing" for call in (d.made, d.expected))
    return (
        f"{named(d.odd)} passed {made} to {incident.operation}{incident.at_step}, {named(d.others)} passed {expected}\n"
        f"{both_sides(incident, basis)}."
    )


def _sizes_of_all(d: Divergence) -> dict[str, list[int]]:
    """Return which ranks passed which sizes to the call at which all of them went apart."""
    ranks_of: dict[str, list[int]] = {}
    for rank, shapes in sorted(d.shapes.items()):
        ranks_of.setdefault(dims(shapes), []).append(rank)
    return ranks_of


def _action(incident: Incident) -> tuple[str, ...]:
    who = named(incident.culprits) if incident.culprits else "one of them"
    if isinstance(incident.basis, Misfit):
        lines = " and ".join(sorted(set(incident.sites.values())))
        return (f"compare the sizes at {lines}: send the size first, or let both sides compute it from the same",)
    site = incident.site or "that call"
    return (f"see why the tensor at {site} has another size on {who}: pad it, or exchange the sizes first",)
