"""Watches checkpoints being saved and loaded: how long, how many bytes, and hashes of what was written."""

import io
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from distdiag.checkpoints.archives import BROKEN, BrokenError
from distdiag.checkpoints.hashes import item_hash, metadata_digest
from distdiag.checkpoints.records import METADATA, FileRecord, ItemHash, combined
from distdiag.hooks._patch import Observer, Undo, observe, replace, together, when_imported
from distdiag.hooks._saving import LOAD, SAVE, SHARDED, STAGE, Activities, Activity
from distdiag.recorder import Recorder

PACKAGE = "torch.distributed.checkpoint"


def install(recorder: Recorder) -> Undo:
    """Record saves and loads of ``torch.distributed.checkpoint``, ``torch.save`` and safetensors."""
    going_on = Activities(recorder)
    return together(
        [
            when_imported("torch.serialization", lambda module: _watch_torch(going_on, module)),
            when_imported("torch", _rebind_torch),
            when_imported("safetensors.torch", lambda module: _watch_safetensors(going_on, module)),
            when_imported(f"{PACKAGE}.filesystem", lambda module: _watch_storage(going_on, module)),
            when_imported(f"{PACKAGE}.state_dict_saver", lambda module: _watch_saver(going_on, module)),
            when_imported(f"{PACKAGE}.state_dict_loader", lambda module: _watch_loader(going_on, module)),
            when_imported(PACKAGE, _rebind_sharded),
        ]
    )


def _rebind_torch(torch: ModuleType) -> Undo:
    """Let ``torch.save`` be the observed function, too."""
    return _rebound(torch, torch.serialization, ("save", "load"))


def _rebind_sharded(package: ModuleType) -> Undo:
    from torch.distributed.checkpoint import state_dict_saver

    return _rebound(package, state_dict_saver, ("async_save",))


def _rebound(module: ModuleType, source: ModuleType, names: tuple[str, ...]) -> Undo:
    wanted = {name: getattr(source, name, None) for name in names if hasattr(module, name)}
    return together([replace(module, name, found) for name, found in wanted.items() if found is not None])


def _watch_torch(going_on: Activities, serialization: ModuleType) -> Undo:
    return _observed(
        serialization,
        save=_Files(going_on, SAVE, "torch", target=1, name="f"),
        load=_Files(going_on, LOAD, "torch", target=0, name="f"),
    )


def _watch_safetensors(going_on: Activities, module: ModuleType) -> Undo:
    return _observed(
        module,
        save_file=_Files(going_on, SAVE, "safetensors", target=1, name="filename"),
        load_file=_Files(going_on, LOAD, "safetensors", target=0, name="filename"),
    )


def _watch_saver(going_on: Activities, module: ModuleType) -> Undo:
    # All public functions lead to the first, whoever imported them under whatever name, and in whatever thread.
    return _observed(module, _save_state_dict=_Sharded(going_on, SAVE), async_save=_Sharded(going_on, STAGE))


def _watch_loader(going_on: Activities, module: ModuleType) -> Undo:
    return _observed(module, _load_state_dict=_Sharded(going_on, LOAD))


def _watch_storage(going_on: Activities, filesystem: ModuleType) -> Undo:
    writer = getattr(filesystem, "_FileSystemWriter", filesystem.FileSystemWriter)
    written, finished = _Written(going_on, filesystem), _Finished(going_on, filesystem)
    return together(
        [
            _observed(writer, write_data=written, finish=finished),
            _observed(filesystem.FileSystemReader, read_data=_Reading(going_on)),
        ]
    )


def _observed(owner: Any, **observers: Observer) -> Undo:
    """Observe those functions of an owner that this version of the library has."""
    return together([observe(owner, name, each) for name, each in observers.items() if hasattr(owner, name)])


class _Files:
    """Observes a function that writes or reads one file."""

    def __init__(self, going_on: Activities, phase: str, form: str, *, target: int, name: str) -> None:
        self._going_on, self._phase, self._form = going_on, phase, form
        self._target, self._name = target, name

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Activity | None:
        if self._going_on.current is not None:
            return None
        target = kwargs.get(self._name, args[self._target] if len(args) > self._target else None)
        path = _path(target)
        if path is None and (self._phase == LOAD or isinstance(target, io.BytesIO)):
            return None  # a buffer is no checkpoint; what else has no path may be a stream to a store
        if (self._phase == LOAD and self._going_on.is_loading_data()) or not self._going_on.may_count():
            return None
        activity = self._going_on.begin(self._phase, self._form, path)
        if activity is not None and not isinstance(target, str | os.PathLike):
            activity.directory = None  # an open file may still hold back what was written to it
        return activity

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        if token is None:
            return
        try:
            if error is None:
                self._measure(token)
        finally:
            self._going_on.end(token, failed=error is not None)

    def _measure(self, activity: Activity) -> None:
        path = activity.directory
        if path is None or not path.is_file():
            return
        activity.bytes = size = path.stat().st_size
        if self._phase == SAVE:
            items = [_hash(path, 0, size)]
            self._going_on.keep(activity, FileRecord(file=path.name, size_bytes=size, digest=combined(items)))


class _Sharded:
    """Observes a save or load of all ranks together."""

    def __init__(self, going_on: Activities, phase: str) -> None:
        self._going_on, self._phase = going_on, phase

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Activity | None:
        storage = kwargs.get("storage_writer") or kwargs.get("storage_reader") or (args[1] if len(args) > 1 else None)
        where = kwargs.get("checkpoint_id") or getattr(storage, "path", None)
        return self._going_on.begin(self._phase, SHARDED, _path(where))

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        if token is not None:
            self._going_on.end(token, failed=error is not None)


class _Written:
    """Observes a rank writing its shards: they are hashed when they are complete.

    ``torch.save`` has put a checksum of each tensor into the shard already; only what is around them is read.
    """

    def __init__(self, going_on: Activities, filesystem: ModuleType) -> None:
        self._going_on, self._filesystem = going_on, filesystem

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0] if self._going_on.current is not None else None

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        activity = self._going_on.current
        if token is None or activity is None or error is not None:
            return
        written = [each.storage_data for each in result.value()]
        activity.bytes += sum(each.length for each in written)
        if not _is_local(token, self._filesystem):
            return
        activity.directory = Path(token.path)
        by_file: dict[str, list[Any]] = {}
        for each in written:
            by_file.setdefault(each.relative_path, []).append(each)
        for name, ranges in by_file.items():
            path = activity.directory / name
            items = [_hash(path, each.offset, each.length) for each in sorted(ranges, key=lambda each: each.offset)]
            size = path.stat().st_size
            self._going_on.keep(
                activity, self._going_on.record(activity, name, size, items=items, digest=combined(items))
            )


class _Finished:
    """Observes the metadata being written, which one rank does when all shards are."""

    def __init__(self, going_on: Activities, filesystem: ModuleType) -> None:
        self._going_on, self._filesystem = going_on, filesystem

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0] if self._going_on.current is not None else None

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        activity = self._going_on.current
        if token is None or activity is None or error is not None or not _is_local(token, self._filesystem):
            return
        shared = getattr(token, "use_collectives", True) or token.rank is None
        path = Path(token.path) / (METADATA if shared else f"__{token.rank}{METADATA}")
        if path.is_file():
            data = path.read_bytes()
            record = self._going_on.record(
                activity, path.name, len(data), digest=metadata_digest(data), save_id=str(token.save_id)
            )
            self._going_on.keep(activity, record)


class _Reading:
    """Observes a rank reading the shards that it needs."""

    def __init__(self, going_on: Activities) -> None:
        self._going_on = going_on

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        activity = self._going_on.current
        if activity is None:
            return
        reader, plan = args[0], kwargs["plan"] if "plan" in kwargs else args[1]
        wanted = {item.storage_index: reader.storage_data[item.storage_index].length for item in plan.items}
        activity.bytes += sum(wanted.values())

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        """Nothing to do: the plan told how much is read."""


def _is_local(writer: Any, filesystem: ModuleType) -> bool:
    """Return whether a writer writes plain files: reading back from an object store would cost too much."""
    return type(getattr(writer, "fs", None)) is filesystem.FileSystem


def _path(target: Any) -> Path | None:
    """Return where a file or folder is; None for a buffer, and for what is not in a file system."""
    if not isinstance(target, str | os.PathLike):
        target = getattr(target, "name", None)
    if not isinstance(target, str | os.PathLike) or "://" in str(target):
        return None
    return Path(os.path.abspath(os.fspath(target)))


def _hash(path: Path, offset: int, length: int) -> ItemHash:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return item_hash(descriptor, offset, length)
    except (BrokenError, *BROKEN):
        return ItemHash(offset, length, None)
    finally:
        os.close(descriptor)
