"""Watches data loaders: an open batch says that a rank still waits for its data, and which samples it got before.

Of a batch counts and digests are written (samples, tokens, padding), never its content.
"""

import threading
import time
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from distdiag import events
from distdiag.hooks._patch import Undo, observe, together, when_imported
from distdiag.recorder import Recorder
from distdiag.thinning import is_kept, power_for

MOST_FIELDS = 4
VALUES_OF_FIELD = 64
VALUES_OF_SAMPLE = 8
"""Values that a digest covers, spread over the tensor: batches that are not equal differ nearly everywhere."""


def install(recorder: Recorder) -> Undo:
    """Record each batch that a ``DataLoader`` is asked for."""
    return when_imported("torch.utils.data.dataloader", lambda module: _install(recorder, module))


def _install(recorder: Recorder, dataloader: ModuleType) -> Undo:
    owner = dataloader._BaseDataLoaderIter
    return together(
        [
            observe(owner, "__next__", _Next(recorder)),
            observe(owner, "_next_index", _Indices()),
            observe(owner, "_reset", _Reset()),
        ]
    )


class _Watched:
    """What is known of one iterator; it hangs on the iterator."""

    __slots__ = ("loop", "number", "pending", "told")

    def __init__(self) -> None:
        self.number = 0
        self.told = False
        """Whether the order of samples that it is at was written."""
        self.pending: deque[dict[str, Any]] = deque()
        """Facts about batches that the sampler has already chosen: workers are ahead of the loop."""
        self.loop = (0, 0)
        """Step and backwards when the batch before came."""


def _watched(iterator: Any) -> _Watched:
    watched: _Watched | None = getattr(iterator, "_distdiag_loader", None)
    if watched is None:
        watched = iterator._distdiag_loader = _Watched()
    return watched


class _Next:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._iterators = 0

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[events.Batch, _Watched, Any]:
        recorder, iterator = self._recorder, args[0]
        watched = _watched(iterator)
        if not watched.number:
            self._iterators += 1
            watched.number = self._iterators
        if threading.get_ident() == recorder.main_thread:
            recorder.loop.enter("data")
        path = recorder.here()
        if not watched.told:
            watched.told = True
            recorder.worker_pids |= {each.pid for each in getattr(iterator, "_workers", ()) if each.pid is not None}
            recorder.write(described(iterator, watched.number, recorder.step, path))
        begun = events.Batch(
            batch=int(getattr(iterator, "_num_yielded", 0)),
            edge="begin",
            time_ns=time.monotonic_ns(),
            step=recorder.step,
            path=path,
            loader=watched.number,
            trained=watched.loop != (recorder.step, recorder.backwards),
        )
        recorder.write(begun)
        return begun, watched, bool(getattr(iterator, "_in_order", True))

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        if token is None:
            return
        recorder = self._recorder
        begun, watched, in_order = token
        ended = events.Batch(
            batch=begun.batch,
            edge="end",
            time_ns=time.monotonic_ns(),
            step=recorder.step,
            loader=begun.loader,
            exhausted=error is StopIteration,
        )
        if error is None:
            known = watched.pending.popleft() if watched.pending else {}
            for name, value in content_facts(result, known if in_order else {}).items():
                setattr(ended, name, value)
            watched.loop = recorder.step, recorder.backwards
        recorder.write(ended)
        if threading.get_ident() == recorder.main_thread:
            recorder.loop.enter("" if error is not None else "forward")


class _Indices:
    """Sees which samples come next; workers are told of them before the loop asks."""

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Watched:
        return _watched(args[0])

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        if token is not None and error is None:
            token.pending.append(sample_facts(result))


class _Reset:
    """Sees an iterator that is used for another epoch."""

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        watched = _watched(args[0])
        watched.told = False
        watched.pending.clear()

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        """Nothing to do."""


def described(iterator: Any, number: int, step: int, path: int | None) -> events.Loader:
    """Return what an iterator's loader says of its data set and its sampler."""
    batches = iterator._index_sampler
    sampler = getattr(batches, "sampler", batches)
    dataset = iterator._dataset
    shuffle = getattr(sampler, "shuffle", None)
    if shuffle is None:
        shuffle = {"RandomSampler": True, "SequentialSampler": False}.get(type(sampler).__name__)
    return events.Loader(
        loader=number,
        time_ns=time.monotonic_ns(),
        step=step,
        path=path,
        dataset=type(dataset).__name__,
        length=_length(dataset),
        batch_size=_whole(getattr(batches, "batch_size", None)),
        workers=int(getattr(iterator, "_num_workers", 0)),
        sampler=type(sampler).__name__,
        shuffle=shuffle if isinstance(shuffle, bool) else None,
        seed=_whole(getattr(sampler, "seed", None)),
        epoch=_whole(getattr(sampler, "epoch", None)),
        replicas=_whole(getattr(sampler, "num_replicas", None)),
        replica=_whole(getattr(sampler, "rank", None)),
        base_seed=zlib.crc32(str(getattr(iterator, "_base_seed", "")).encode()),
    )


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def sample_facts(indices: Any) -> dict[str, Any]:
    """Return ``samples``, ``ids`` and ``thinned`` for what a sampler gave: one index or the list of a batch's."""
    if indices is None:
        return {}
    several = list(indices) if isinstance(indices, list | tuple) else [indices]
    if not several or several[0] is None:  # a data set that is only iterated over
        return {}
    ids = several if all(type(each) is int for each in several) else [_number(each) for each in several]
    power = power_for(len(ids))
    places = [place for place, each in enumerate(ids) if is_kept(each, power)] if power else range(len(ids))
    return {"samples": len(ids), "ids": [ids[place] for place in places], "thinned": power, "places": places}


def content_facts(batch: Any, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a batch that came, with what its tensors on the host show; ``places`` are used up."""
    facts = dict(facts)
    places: Sequence[int] = facts.pop("places", ())
    tensors = [each for each in _tensors(batch) if _is_readable(each)][:MOST_FIELDS]
    if not tensors:
        return facts
    rows = len(tensors[0]) if tensors[0].ndim else 1
    facts["fields"] = [_digest(each, VALUES_OF_FIELD) for each in tensors]
    if facts.get("samples", rows) == rows:
        facts["samples"] = rows
        telling = _telling(tensors, rows)
        if telling is not None:
            facts["contents"] = _digests_of_rows(telling, places)
    if isinstance(batch, Mapping) or hasattr(batch, "keys"):
        facts |= token_facts(batch)
    return facts


def token_facts(batch: Any) -> dict[str, int]:
    """Return numbers of tokens and positions where a batch has an attention mask or input ids."""
    mask: Any = batch["attention_mask"] if "attention_mask" in batch else None  # noqa: SIM401 - not all have a get
    ids: Any = batch["input_ids"] if "input_ids" in batch else None  # noqa: SIM401
    if _is_readable(mask) and mask.ndim == 2 and not mask.is_floating_point():
        lengths = mask.sum(1)
        return {
            "tokens": int(lengths.sum()),
            "positions": mask.numel(),
            "tokens_squared": int((lengths * lengths).sum()),
        }
    return {"positions": ids.numel()} if _is_readable(ids) and ids.ndim == 2 else {}


def _telling(tensors: Sequence[Any], rows: int) -> Any:
    """Return the tensor that tells samples apart best: token ids before pixels, which augmentation changes."""
    several = [each for each in tensors if each.ndim > 1 and len(each) == rows]
    whole = [each for each in several if not each.is_floating_point()]
    return (whole or several or [None])[0]


def _tensors(batch: Any, depth: int = 2) -> Iterator[Any]:
    if hasattr(batch, "storage_offset"):
        yield batch
    elif depth and isinstance(batch, list | tuple):
        for each in batch[:MOST_FIELDS]:
            yield from _tensors(each, depth - 1)
    elif depth and isinstance(batch, Mapping):
        for each in list(batch.values())[:MOST_FIELDS]:
            yield from _tensors(each, depth - 1)


def _is_readable(tensor: Any) -> bool:
    import torch

    return type(tensor) is torch.Tensor and tensor.device.type == "cpu" and tensor.layout == torch.strided


def _digest(tensor: Any, values: int) -> int:
    """Return a digest of some values that are spread over a tensor."""
    while tensor.ndim > 1 and not tensor.is_contiguous():
        tensor = tensor[0] if len(tensor) else tensor.reshape(-1)
    flat = tensor.reshape(-1)
    step = max(1, flat.numel() // values)
    return zlib.crc32(repr(flat[::step][:values].tolist()).encode())


def _digests_of_rows(tensor: Any, places: Sequence[int]) -> list[int]:
    """Return the digests of some rows; of a tensor in one piece all are taken at once, which is 2 to 7 x faster."""
    if not places or not tensor.is_contiguous():
        return [_digest(tensor[place], VALUES_OF_SAMPLE) for place in places]
    rows = tensor.view(len(tensor), -1)
    spread = rows[:, :: max(1, rows.shape[1] // VALUES_OF_SAMPLE)][:, :VALUES_OF_SAMPLE]
    chosen = spread if len(places) == len(rows) else spread[list(places)]
    return [zlib.crc32(repr(row).encode()) for row in chosen.tolist()]


def _number(sample: Any) -> int:
    """Return a number for a sample id of any type."""
    index = getattr(sample, "__index__", None)
    return int(index()) if index is not None else zlib.crc32(repr(sample).encode())
