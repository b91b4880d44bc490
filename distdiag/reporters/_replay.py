"""What a step needs to be run again, as lines."""

from collections.abc import Iterator, Mapping
from typing import Any

from distdiag.reporters._lines import Line, Span

MOST_IDS = 24


def replay_lines(replay: Mapping[str, Any]) -> Iterator[Line]:
    """Yield a heading, a block for each rank, and what to do; ``replay`` is of ``distdiag.replay/1``."""
    of = f" of {replay['script']}" if replay["script"] else ""
    yield (
        Span(f"Step {replay['step']}{of}", "bold"),
        Span(f", as {len(replay['ranks'])} of {replay['world_size']} ranks ran it"),
    )
    for rank in replay["ranks"]:
        yield ()
        yield from _rank(rank)
    yield ()
    yield from _steps(replay)


def _rank(rank: Mapping[str, Any]) -> Iterator[Line]:
    loss = rank["loss"]
    said = "" if loss is None else f"  loss {loss if isinstance(loss, str) else f'{loss:.6g}'}"
    yield (Span(f"rank {rank['rank']}", "bold"), Span(said))
    if rank["seed"] is not None:
        yield (Span(f"  seed       {rank['seed']} (torch.initial_seed)"),)
    if rank["random_states"]:
        states = ", ".join(f"{name} {value:08x}" for name, value in sorted(rank["random_states"].items()))
        yield (Span(f"  generators {states}, before the update of step {rank['random_step']}"),)
    for drawn in rank["batches"]:
        yield (Span(f"  batch      {_batch(drawn['facts'])}"),)
        if drawn["loader"]:
            yield (Span(f"  loader     {_loader(drawn['loader'])}"),)
    if not rank["batches"]:
        yield (Span("  batch      none came of a DataLoader in this step"),)


def _batch(facts: Mapping[str, Any]) -> str:
    parts = [f"{facts.get('batch', '?')} of its epoch"]
    if "samples" in facts:
        parts.append(f"{facts['samples']} samples")
    ids = facts.get("ids", [])
    if ids:
        kept = f"1 of {1 << facts['thinned']} of their ids: " if facts.get("thinned") else "ids "
        parts.append(kept + " ".join(map(str, ids[:MOST_IDS])) + (" …" if len(ids) > MOST_IDS else ""))
    if "tokens" in facts:
        parts.append(f"{facts['tokens']:,} tokens of {facts.get('positions', 0):,} positions")
    return ", ".join(parts)


def _loader(loader: Mapping[str, Any]) -> str:
    length = f" of {loader['length']:,} samples" if "length" in loader else ""
    parts = [f"{loader.get('dataset', 'a data set')}{length}", str(loader.get("sampler", "no sampler"))]
    if "shuffle" in loader:
        parts.append("shuffled" if loader["shuffle"] else "in order")
    parts += [f"{name} {loader[name]}" for name in ("seed", "epoch") if name in loader]
    if "replica" in loader and "replicas" in loader:
        parts.append(f"share {loader['replica']} of {loader['replicas']}")
    parts += [
        f"{words} {loader[name]}"
        for name, words in (("batch_size", "batch size"), ("workers", "workers"))
        if name in loader
    ]
    return ", ".join(parts)


def _steps(replay: Mapping[str, Any]) -> Iterator[Line]:
    yield (Span("To run it again", "bold"),)
    yield (
        Span(f"  1  load the last checkpoint before step {replay['step']}, with the states of generators and sampler"),
    )
    yield (Span("  2  set the seeds above; call sampler.set_epoch with the epoch above"),)
    yield (Span("  3  go through the loader to the batch above, or load the ids above directly: Subset(dataset, ids)"),)
    yield (Span("  4  equal digests of generators and equal losses say that it is the same step; another loss with"),)
    yield (Span("     the same samples points to the hardware of that rank"),)
