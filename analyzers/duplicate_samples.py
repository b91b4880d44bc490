"""Data-parallel ranks trained on the same samples.

What it means
    Each rank should have a share of its own. Where two have the same samples, their gradients say the same twice: the
    batch is in truth smaller, an epoch goes through the data several times, and what was paid for is not trained on.

How it is found
    Each rank writes ids and digests of samples of its batches, never their content. Ranks that average gradients and
    share no other work are compared epoch by epoch: batches that are equal at the same place, and samples that both
    had until one of them had a sample again: from there on it draws with replacement, or goes through its data once
    more. Equal ids alone are no evidence: ranks may number shares of their own. Fewer than 10 batches, loaders that
    are not trained on, and peers of tensor, context or pipeline parallelism are left out. Of a data set that is
    iterable the batches of a loader's workers are compared as well: each of them goes through it. Where nothing is
    known of batches, ranks are mentioned whose losses are equal, bit for bit, in all of at least 10 steps, if they
    change from step to step, and if no call before the backward may have averaged or gathered what they are made of.

What to do
    Give the loader a ``DistributedSampler``, or give each rank a share of the data or a seed of its own. With
    ``DistributedSampler`` call ``set_epoch`` in each epoch, with the same number on all ranks. Data sets that are
    iterable divide themselves, in ``__iter__``: by rank, and by ``torch.utils.data.get_worker_info()``.
"""

from collections.abc import Iterator
from itertools import pairwise

from distdiag.analyzers._wording import named
from distdiag.analyzers.investigation.trust import data_in_words
from distdiag.analyzers.training.samplers import sampler_splits, strangers
from distdiag.analyzers.training.samples import FEWEST_BATCHES, Overlap, Stream, overlap, training_streams
from distdiag.findings import Finding, Severity
from distdiag.run import Run

CODE = "DD601"
NAME = "duplicate-samples"
SAME_ORDER_SHARE = 0.9
SHARED_SHARE = 0.1
FEWEST_KEPT = 8
"""Of all ids, that both had: of samples drawn at random two ranks share a few before one of them has one again."""
SAYING_NOTHING = ("broadcast", "barrier")
FEWEST_SHARED = 32
"""Samplers repeat some samples so that all ranks have as many: fewer than there are ranks."""


def analyze(run: Run) -> Iterator[Finding]:
    """Yield one finding for ranks that trained on the same samples, and one for epochs in the same order."""
    streams = training_streams(run)
    yield from _same_workers(run, streams)
    if not sampler_splits(run):
        found = list(_overlaps(run, streams))
        if found:
            yield _finding(run, found)
            return
    yield from _same_epochs(streams)
    if not streams:
        yield from _same_losses(run)


def _overlaps(run: Run, streams: dict[int, list[Stream]]) -> Iterator[Overlap]:
    for first, second in strangers(run):
        theirs = {stream.key: stream for stream in streams.get(second, ())}
        for mine in streams.get(first, ()):
            common = overlap(mine, theirs[mine.key]) if mine.key in theirs else None
            if common is not None and _is_notable(common, len(run.ranks)):
                yield common
                break


def _is_notable(common: Overlap, ranks: int) -> bool:
    if common.same_order >= SAME_ORDER_SHARE * common.compared:
        return True
    enough = common.kept >= FEWEST_KEPT and common.shared >= max(FEWEST_SHARED, 2 * ranks)
    return common.share >= SHARED_SHARE and enough


def _finding(run: Run, found: list[Overlap]) -> Finding:
    first = min(found, key=lambda each: (each.step, -each.same_order / each.compared, each.ranks))
    ranks = tuple(sorted({rank for each in found for rank in each.ranks}))
    same = first.same_order >= SAME_ORDER_SHARE * first.compared
    if same:
        what = f"all of them in {first.same_order} of {first.compared} batches, in the same order"
    else:
        what = f"{100 * first.share:.0f} % of them in epoch {first.streams[0].epoch}, in another order"
    how = f"ranks {first.ranks[0]} and {first.ranks[1]}" if len(ranks) > 2 else "they"
    return Finding(
        code=CODE,
        name=NAME,
        severity=Severity.WARNING,
        summary=(
            f"{named(ranks)} trained on the same samples: {how} share {what}, from step {first.step} on\n"
            f"{_samplers(first)}"
        ),
        culprits=ranks if len(ranks) < len(run.ranks) else (),
        step=first.step,
        cause="same-order" if same else "overlap",
        evidence=(*_evidence(first), data_in_words(run)),
        action=_action(first),
    )


def _samplers(common: Overlap) -> str:
    a, b = (stream.loader for stream in common.streams)
    if common.streams[0].is_iterable:
        return "The data set is iterable and gives each rank the same: no sampler divides it."
    if a["replicas"] != a["replicas"] or a["replicas"] is None:
        return f"Their sampler is {a['sampler'] or 'none'}: it does not divide the data set between ranks."
    if a["replica"] == b["replica"]:
        return f"Both take share {a['replica']} of {a['replicas']} of the data set."
    return f"Their sampler is {a['sampler']}, shares {a['replica']} and {b['replica']} of {a['replicas']}."


def _evidence(common: Overlap) -> tuple[str, ...]:
    a, b = common.streams
    ids = next(iter(a.batches["ids"])) if len(a.batches) else ()
    of_data = f"of {a.loader['dataset']} with {_length(a)} samples"
    if not common.shared:
        return (f"{common.same_order} batches are equal, bit for bit, {of_data}",)
    parts = [f"at least {common.shared} samples that both had, {of_data}"]
    if ids:
        parts.append(f"first batch of rank {a.rank}: samples {', '.join(map(str, ids[:8]))}")
        others = next(iter(b.batches["ids"]))
        parts.append(f"first batch of rank {b.rank}: samples {', '.join(map(str, others[:8]))}")
    return tuple(parts)


def _length(stream: Stream) -> str:
    length = stream.loader["length"]
    return "an unknown number of" if length is None or length != length else str(int(length))


def _action(common: Overlap) -> tuple[str, ...]:
    loader = common.streams[0].loader
    if common.streams[0].is_iterable:
        return (
            "give each rank a part of its own in __iter__: islice(samples, rank, None, world_size), or other files",
            "datasets of Hugging Face: datasets.distributed.split_dataset_by_node(dataset, rank, world_size)",
        )
    if loader["replicas"] is None or loader["replicas"] != loader["replicas"]:
        return (
            "give the loader sampler=DistributedSampler(dataset), and call its set_epoch in each epoch",
            "if each rank reads files of its own, make sure that the lists of files differ",
        )
    return ("check num_replicas and rank of the sampler: each data-parallel rank needs a number of its own",)


def _same_workers(run: Run, streams: dict[int, list[Stream]]) -> Iterator[Finding]:
    """Say that all workers of a loader go through the whole of an iterable data set."""
    found: dict[int, tuple[Stream, int, int]] = {}
    for rank, mine in streams.items():
        for stream in mine:
            same, rounds = stream.rounds() if stream.is_iterable else (0, 0)
            if rounds >= FEWEST_BATCHES and same >= SAME_ORDER_SHARE * rounds:
                found[rank] = stream, same, rounds
                break
    if not found:
        return
    stream, same, rounds = found[min(found)]
    workers, ranks = int(stream.loader["workers"]), tuple(sorted(found))
    yield Finding(
        code=CODE,
        name=NAME,
        severity=Severity.WARNING,
        summary=(
            f"{named(ranks)} trained {workers} times on each sample: every worker of the data loader gives the same "
            f"batches, from step {int(stream.batches['step'].min())} on\n"
            f"{stream.loader['dataset']} is iterable, and each of {workers} workers goes through all of it."
        ),
        culprits=ranks if len(ranks) < len(run.ranks) else (),
        step=int(stream.batches["step"].min()),
        cause="same-workers",
        evidence=(
            f"in {same} of {rounds} rounds all workers of rank {stream.rank} gave the same batch, bit for bit",
            data_in_words(run),
        ),
        action=(
            "divide the stream in __iter__ by torch.utils.data.get_worker_info(): islice(samples, info.id, None, "
            "info.num_workers), beside the division by rank",
        ),
    )


def _same_epochs(streams: dict[int, list[Stream]]) -> Iterator[Finding]:
    """Say that an order that should be drawn anew is the same in every epoch."""
    stuck = {}
    for rank, mine in streams.items():
        shuffled = [
            stream for stream in mine if stream.loader["shuffle"] is True and stream.loader["epoch"] is not None
        ]
        for one, next_one in pairwise(shuffled):
            ids = [list(stream.batches["ids"]) for stream in (one, next_one)]
            if one.key[:2] == next_one.key[:2] and len(ids[0]) >= FEWEST_BATCHES and ids[0] == ids[1]:
                stuck[rank] = next_one
                break
    if stuck:
        stream = stuck[min(stuck)]
        yield Finding(
            code=CODE,
            name=NAME,
            severity=Severity.INFO,
            summary=(
                f"{named(stuck)} went through the data in the same order in epochs {stream.epoch - 1} and "
                f"{stream.epoch}: the sampler's epoch stayed {int(stream.loader['epoch'])}"
            ),
            step=int(stream.batches["step"].min()),
            cause="set-epoch",
            action=("call sampler.set_epoch(epoch) at the beginning of each epoch",),
        )


def _same_losses(run: Run) -> Iterator[Finding]:
    """Mention ranks whose losses are always the same; a rehearsal on made-up batches may well be meant so."""
    calls, numerics = run.calls, run.numerics
    numerics = numerics[numerics["loss"].map(lambda loss: isinstance(loss, float)).astype("bool")]
    before = (calls["forwards"] > 0) & (calls["phase"] != "backward") & (calls["backwards"] == 0)
    if (before & ~calls["op"].isin(SAYING_NOTHING) & calls["module"].isna()).any():
        return
    losses = numerics.drop_duplicates(["rank", "step"]).pivot(index="step", columns="rank", values="loss")
    same = []
    for pair in strangers(run):
        both = losses[list(pair)].dropna() if set(pair) <= set(losses) else losses.iloc[:0]
        alike = len(both) >= FEWEST_BATCHES and (both[pair[0]] == both[pair[1]]).all()
        if alike and 2 * both[pair[0]].nunique() > len(both):
            same.append(pair)
    ranks = tuple(sorted({rank for pair in same for rank in pair}))
    if same:
        yield Finding(
            code=CODE,
            name=NAME,
            severity=Severity.INFO,
            summary=f"the losses of {named(ranks)} are equal, bit for bit, in each of {len(losses)} steps: they train "
            "on the same samples",
            step=int(losses.index.min()),
            cause="same-losses",
            evidence=(f"first of them: {losses[ranks[0]].iloc[0]:g}, {losses[ranks[0]].iloc[1]:g}", data_in_words(run)),
            action=("give each rank a share of its own, or a seed of its own where samples are drawn at random",),
        )
