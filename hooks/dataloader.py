"""Watches data loaders: an open batch says that a rank still waits for its data, and which samples it got before."""

import threading
import time
import zlib
from collections import deque
from types import ModuleType
from typing import Any

from distdiag import events
from distdiag.hooks._batches import content_facts, sample_facts
from distdiag.hooks._patch import Undo, observe, together, when_imported
from distdiag.recorder import Recorder


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
