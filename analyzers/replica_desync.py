"""Replicas of one model are no longer equal.

What it means
    Data-parallel ranks begin with the same parameters and add the same averaged gradients: their replicas have to be
    equal, bit for bit, for the whole run. Where they are not, each rank trains a model of its own on its share of the
    data, the loss still goes down, and what is saved is the model of one rank.

How it is found
    Each rank writes a checksum of its replica just before the optimizer changes it: in steps 0 to 3, in 8, 16, 32
    and 64, and every 100 (``DISTDIAG_CHECKSUM_EVERY``). The first step in which they differ is reported, with the first
    parameter and the ranks that differ from a strict majority of all replicas. Shards are compared only with those of
    ranks that hold the same ones (``fully_shard`` on a mesh of two dimensions).
    ``distdiag watch`` compares them by the same rule as they are written.

    Without a wrapper, ranks have replicas in the steps in which one group summed each gradient of an optimizer once,
    or all as one flat tensor, and all ranks had equal gradients after that, bit for bit. Where the ends of calls are
    not known before the optimizer's step, as on most GPUs, nothing is told of them.

    What the ranks whose replica is another did unlike all others since replicas were equal is said: checkpoints they
    loaded, numbers of their optimizer as its learning rate, and backwards before an update, which tell one left out.

What to do
    One parameter alone: suspect memory of that rank's device, or code that writes to it. All of them: look for what
    differs between ranks in the step: learning rate, loss scale, optimizer state loaded from a checkpoint, gradients
    changed after they were averaged, a random number where all should draw the same.
"""

from collections.abc import Hashable, Iterator, Sequence
from pathlib import PurePath

from distdiag.analyzers._wording import counted, named, verb
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.training.checksums import Desync, desyncs, scale_splits
from distdiag.analyzers.training.gradients import unsynchronised
from distdiag.analyzers.training.numerics import numerics_of
from distdiag.analyzers.training.peers import by_value
from distdiag.findings import Confidence, Finding, Severity
from distdiag.replicas import minority, name_of
from distdiag.run import Run

CODE = "DD503"
NAME = "replica-desync"
ADDED_LATER = "added-later"
LOADING = "checkpoint load"


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for the replicas that went apart first, unless another finding says why they did."""
    for desync in desyncs(run)[:1]:
        if not _is_explained(run, desync):
            yield _finding(run, desync)


def _is_explained(run: Run, desync: Desync) -> bool:
    """Return whether gradients that stayed apart, or different loss scales, came before: findings of their own."""
    members = set(desync.group.members)
    before = [each.step for each in unsynchronised(run) if members & set(each.ranks)]
    before += [each.step for each in scale_splits(run) if members & set(each.scales)]
    return any(step < desync.step for step in before)


def _finding(run: Run, desync: Desync) -> Finding:
    unlike = _unlike(run, desync)
    return Finding(
        code=CODE,
        name=NAME,
        severity=Severity.ERROR,
        summary=f"{_who(desync)} from step {desync.step} on\n{_since(desync)}{_said(unlike)}",
        culprits=desync.found.odd,
        group=desync.group.group,
        step=desync.step,
        cause=ADDED_LATER if _were_added_later(desync) else None,
        confidence=Confidence.HIGH if desync.found.odd else Confidence.MEDIUM,
        evidence=(*_evidence(desync), *unlike[1:], data_in_words(run)),
        action=_action(desync, unlike),
    )


def _who(desync: Desync) -> str:
    odd = desync.found.odd
    if odd:
        others = [rank for rank in desync.found.checksums if rank not in odd]
        return f"the model on {named(odd)} differs from the one that {named(others)} {verb(others, 'has', 'have')}"
    why = "which should be equal" if not desync.group.by_hand else "whose gradients the script averages by itself"
    what = "shards" if desync.group.hybrid else "models"
    return f"the {what} on {named(desync.group.members)}, {why}, differ"


def _since(desync: Desync) -> str:
    differing, of = len(desync.found.differing), counted(desync.found.parameters, "parameter")
    what = f"{differing} of {of} differ, first {first_name(desync)}"
    if _were_added_later(desync):
        what = f"{differing} of {of} {'differs' if differing == 1 else 'differ'}, those that the model got after DDP "
        what += "had wrapped it: their gradients are not averaged"
    elif differing == 1:
        what = f"One of {of} differs: {first_name(desync)}"
    if desync.equal_step is None:
        return f"{what}; they differed when they were first compared."
    return f"{what}; in step {desync.equal_step} all were equal, bit for bit."


def first_name(desync: Desync) -> str:
    """Return the name of the first parameter that differs, as far as it is known."""
    return name_of(desync.group.names, desync.found)


def _were_added_later(desync: Desync) -> bool:
    """Return whether all that differs came to the model after its wrapper was made, which knows the names before."""
    known, found = len(desync.group.names), desync.found
    return not desync.group.by_hand and 0 < known < found.parameters and min(found.differing, default=0) >= known


def _unlike(run: Run, desync: Desync) -> tuple[str, ...]:
    """Return what those whose replica is another did in another way than the rest, up to that step, in words."""
    members, odd = set(desync.group.members), desync.found.odd
    found: dict[str, str] = {}
    for what, when, of_ranks in _beforehand(run, desync):
        values = {rank: value for rank, value in of_ranks.items() if rank in members}
        groups = by_value(values)
        if set(values) == members and len(groups) == 2 and minority(values) == odd:
            groups.sort(key=lambda group: group[1] != odd)
            said = ", ".join(f"{_short(value)} on {named(ranks)}" for value, ranks in groups)
            found.setdefault(what, f"{what}{when} ({said})")
    return tuple(found.values())


def _beforehand(run: Run, desync: Desync) -> Iterator[tuple[str, str, dict[int, Hashable]]]:
    """Yield what is known of all ranks' doing since replicas were equal: what, when, and its value on each rank."""
    span = (-1 if desync.equal_step is None else desync.equal_step), desync.step
    numerics, loads = numerics_of(run), run.phases[run.phases["phase"] == LOADING]
    loads = loads[(loads["edge"] == "begin") & loads["directory"].notna() & loads["step"].between(*span)]
    files = loads["directory"].map(lambda path: PurePath(path).name).groupby(loads["rank"])
    loaded: dict[int, Hashable] = {int(str(rank)): ", ".join(sorted(set(names))) for rank, names in files}
    yield "loaded from a checkpoint", "", {rank: loaded.get(rank, "nothing") for rank in desync.group.members}
    told = numerics["optimizer"].map(bool).astype("bool") & numerics["step"].between(*span)
    for step, rows in numerics[told].groupby("step"):
        numbers = dict(zip(rows["rank"].tolist(), rows["optimizer"].tolist(), strict=True))
        for name in sorted(set().union(*numbers.values())):
            yield f"the optimizer's {name}", f" in step {step}", {r: each.get(name) for r, each in numbers.items()}
    made = run.steps[run.steps["step"].between(*span) & run.steps["backwards"].notna()]
    for step, rows in made.groupby("step"):
        passes = zip(rows["rank"].tolist(), rows["backwards"].astype(int).tolist(), strict=True)
        yield "backwards before the update", f" of step {step}", dict(passes)


def _short(value: Hashable) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _said(unlike: Sequence[str]) -> str:
    return f" What was not alike before: {unlike[0]}." if unlike else ""


def _evidence(desync: Desync) -> tuple[str, ...]:
    sums = ", ".join(f"rank {rank} {value:08x}" for rank, value in sorted(desync.found.checksums.items())[:8])
    parts = [f"checksums before the update of step {desync.step}: {sums}"]
    if not desync.found.odd:
        parts.append("no strict majority: the logs cannot say which replica is wrong")
    return tuple(parts)


def _action(desync: Desync, unlike: Sequence[str]) -> tuple[str, ...]:
    who = named(desync.found.odd) if desync.found.odd else "each rank"
    between = (
        f"between steps {desync.equal_step} and {desync.step}" if desync.equal_step is not None else "at the start"
    )
    if unlike:
        first = f"find out why they are not alike: {unlike[0]}"
    elif _were_added_later(desync):
        first = "wrap the model in DDP after all its parameters are there, or wrap it anew when it gets more"
    elif desync.equal_step is None and not desync.found.odd and (desync.group.by_hand or desync.group.hybrid):
        first = "broadcast the weights of one rank to all before the first step: nothing else makes them equal"
    elif len(desync.found.differing) == 1:
        first = (
            f"look for code on {who} that writes to {first_name(desync)} {between}; if there is none, test its memory"
        )
    elif desync.equal_step is None and desync.step == 0:
        first = (
            f"find out how {who} came by its weights: a wrapper makes them equal when it is made (but with "
            "init_sync=False), so that a checkpoint was loaded or layers were made anew after that"
        )
    else:
        first = f"compare what {who} did {between} with the others: learning rate, scale, clipping, optimizer state"
    since = -1 if desync.equal_step is None else desync.equal_step
    again = "set DISTDIAG_CHECKSUM_EVERY=1 and run these steps again to see the exact step"
    return (
        first,
        "do not save from this state: which rank's model is right, the file will not tell",
        *((again,) if desync.step > since + 1 else ()),
    )
