"""Watches checkpoints being saved and loaded: how long, how many bytes, and hashes of what was written."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from distdiag import events
from distdiag.checkpoints.archives import BROKEN, BrokenError
from distdiag.checkpoints.hashes import item_hash, metadata_digest
from distdiag.checkpoints.records import FileRecord, ItemHash, combined, in_words, write_record
from distdiag.hooks._patch import Undo, observe, replace, together, when_imported
from distdiag.recorder import Recorder

SAVE, STAGE, UPLOAD, LOAD = "checkpoint save", "checkpoint stage", "checkpoint upload", "checkpoint load"
"""Phases. An asynchronous save is staged by the training thread and uploaded by another one."""
METADATA = ".metadata"
MOST_PER_STEP = 16
"""Single files written or read in one step that are recorded: a data set that is stored with ``torch.save`` is read
file by file, and phases are kept for ever."""
SHARDED = "torch.distributed.checkpoint"


@dataclass(slots=True, kw_only=True)
class _Activity:
    """A save or load that is going on in one thread."""

    phase: events.Phase
    named: bool
    """Whether calls of the main thread carry the phase: they do unless the user has named one."""
    step: int
    directory: Path | None
    bytes: int = 0
    files: dict[str, str] = field(default_factory=dict)


class _Activities(threading.local):
    """The activity of this thread, and how deep inside of it a call is."""

    current: _Activity | None = None


def install(recorder: Recorder) -> Undo:
    """Record saves and loads of ``torch.distributed.checkpoint``, ``torch.save`` and safetensors."""
    watch = _Watch(recorder)
    return together(
        [
            when_imported("torch.serialization", watch.files_of_torch),
            when_imported("torch", _rebind_torch),
            when_imported("safetensors.torch", watch.files_of_safetensors),
            when_imported(f"{SHARDED}.filesystem", watch.storage),
            when_imported(f"{SHARDED}.state_dict_saver", watch.saver),
            when_imported(f"{SHARDED}.state_dict_loader", watch.loader),
            when_imported(SHARDED, _rebind_sharded),
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


class _Watch:
    """What all observers share: the recorder, and what is going on in which thread."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._threads = _Activities()
        self._staged: dict[str, int] = {}
        """Step at which a folder's asynchronous save was staged."""
        self._counted = (0, 0)

    # ---- where to look ------------------------------------------------------------------------------------------
    def files_of_torch(self, serialization: ModuleType) -> Undo:
        """Watch ``torch.save`` and ``torch.load``."""
        return together(
            [
                observe(serialization, "save", _Files(self, SAVE, "torch", target=1, name="f")),
                observe(serialization, "load", _Files(self, LOAD, "torch", target=0, name="f")),
            ]
        )

    def files_of_safetensors(self, module: ModuleType) -> Undo:
        """Watch ``save_file`` and ``load_file``."""
        return together(
            [
                observe(module, "save_file", _Files(self, SAVE, "safetensors", target=1, name="filename")),
                observe(module, "load_file", _Files(self, LOAD, "safetensors", target=0, name="filename")),
            ]
        )

    def saver(self, module: ModuleType) -> Undo:
        """Watch sharded saves, both what the training thread does and what another one does for it."""
        undos = [observe(module, "_save_state_dict", _Sharded(self, SAVE))]
        if hasattr(module, "async_save"):
            undos.append(observe(module, "async_save", _Sharded(self, STAGE)))
        return together(undos)

    def loader(self, module: ModuleType) -> Undo:
        """Watch sharded loads."""
        return observe(module, "_load_state_dict", _Sharded(self, LOAD))

    def storage(self, filesystem: ModuleType) -> Undo:
        """Watch the files of sharded checkpoints being written and read."""
        writer = getattr(filesystem, "_FileSystemWriter", filesystem.FileSystemWriter)
        return together(
            [
                observe(writer, "write_data", _Written(self, filesystem)),
                observe(writer, "finish", _Finished(self, filesystem)),
                observe(filesystem.FileSystemReader, "read_data", _Reading(self)),
            ]
        )

    # ---- what goes on -------------------------------------------------------------------------------------------
    def begin(self, phase: str, form: str, directory: Path | None) -> _Activity | None:
        """Begin an activity of this thread; None inside of another one, and in a process that is no rank."""
        recorder, threads = self._recorder, self._threads
        if threads.current is not None or os.getpid() != recorder.pid:
            return None
        main = threading.get_ident() == recorder.main_thread
        if not main and phase == SAVE and form == "sharded":
            phase = UPLOAD
        facts = {"format": form, "directory": str(directory) if directory is not None else None}
        named = main and not recorder.user_phases
        begin = recorder.enter_user_phase if named else recorder.begin_phase
        step = self._staged.get(str(directory), recorder.step) if phase == UPLOAD else recorder.step
        activity = threads.current = _Activity(phase=begin(phase, **facts), named=named, step=step, directory=directory)
        if phase == STAGE:
            self._staged[str(directory)] = recorder.step
        return activity

    def end(self, activity: _Activity, *, failed: bool) -> None:
        """End an activity of this thread."""
        self._threads.current = None
        end: Callable[..., None] = self._recorder.leave_user_phase if activity.named else self._recorder.end_phase
        begun = activity.phase
        end(
            begun,
            failed=failed,
            format=begun.format,
            directory=begun.directory,
            bytes=activity.bytes or None,
            files=activity.files,
        )

    @property
    def current(self) -> _Activity | None:
        """Return the activity of this thread."""
        return self._threads.current

    def is_loading_data(self) -> bool:
        """Return whether the training thread waits for its data loader: what it reads then are samples."""
        return self._recorder.phase == "data" and threading.get_ident() == self._recorder.main_thread

    def may_count(self) -> bool:
        """Return whether one more single file of this step may be recorded."""
        step, count = self._counted
        count = count + 1 if step == self._recorder.step else 1
        self._counted = (self._recorder.step, count)
        return count <= MOST_PER_STEP

    def keep(self, activity: _Activity, record: FileRecord) -> None:
        """Note a file that was written, in the log and, for a sharded checkpoint, beside it."""
        activity.files[record.file] = in_words(record)
        if activity.directory is not None and activity.phase.format == "sharded":
            write_record(activity.directory, record)

    def record(self, activity: _Activity, name: str, size: int, **facts: Any) -> FileRecord:
        """Return the record of a file that this rank wrote."""
        return FileRecord(
            file=name,
            size_bytes=size,
            rank=self._recorder.rank,
            world_size=self._recorder.world_size,
            step=activity.step,
            wall_ns=time.time_ns(),
            **facts,
        )


class _Files:
    """Observes a function that writes or reads one file."""

    def __init__(self, watch: _Watch, phase: str, form: str, *, target: int, name: str) -> None:
        self._watch, self._phase, self._form = watch, phase, form
        self._target, self._name = target, name

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Activity | None:
        if self._watch.current is not None:
            return None
        target = kwargs.get(self._name, args[self._target] if len(args) > self._target else None)
        path = _path(target)
        if path is None or (self._phase == LOAD and self._watch.is_loading_data()) or not self._watch.may_count():
            return None
        activity = self._watch.begin(self._phase, self._form, path)
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
            self._watch.end(token, failed=error is not None)

    def _measure(self, activity: _Activity) -> None:
        path = activity.directory
        if path is None or not path.is_file():
            return
        activity.bytes = size = path.stat().st_size
        if self._phase == SAVE:
            items = [_hash(path, 0, size)]
            self._watch.keep(activity, FileRecord(file=path.name, size_bytes=size, digest=combined(items)))


class _Sharded:
    """Observes a save or load of all ranks together."""

    def __init__(self, watch: _Watch, phase: str) -> None:
        self._watch, self._phase = watch, phase

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Activity | None:
        storage = kwargs.get("storage_writer") or kwargs.get("storage_reader") or (args[1] if len(args) > 1 else None)
        where = kwargs.get("checkpoint_id") or getattr(storage, "path", None)
        return self._watch.begin(self._phase, "sharded", _path(where))

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        if token is not None:
            self._watch.end(token, failed=error is not None)


class _Written:
    """Observes a rank writing its shards: they are hashed when they are complete.

    ``torch.save`` has put a checksum of each tensor into the shard already; only what is around them is read.
    """

    def __init__(self, watch: _Watch, filesystem: ModuleType) -> None:
        self._watch, self._filesystem = watch, filesystem

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0] if self._watch.current is not None else None

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        activity = self._watch.current
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
            self._watch.keep(activity, self._watch.record(activity, name, size, items=items, digest=combined(items)))


class _Finished:
    """Observes the metadata being written, which one rank does when all shards are."""

    def __init__(self, watch: _Watch, filesystem: ModuleType) -> None:
        self._watch, self._filesystem = watch, filesystem

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0] if self._watch.current is not None else None

    def after(self, token: Any, result: Any, error: type[BaseException] | None) -> None:
        activity = self._watch.current
        if token is None or activity is None or error is not None or not _is_local(token, self._filesystem):
            return
        shared = getattr(token, "use_collectives", True) or token.rank is None
        path = Path(token.path) / (METADATA if shared else f"__{token.rank}{METADATA}")
        if path.is_file():
            data = path.read_bytes()
            record = self._watch.record(
                activity, path.name, len(data), digest=metadata_digest(data), save_id=str(token.save_id)
            )
            self._watch.keep(activity, record)


class _Reading:
    """Observes a rank reading the shards that it needs."""

    def __init__(self, watch: _Watch) -> None:
        self._watch = watch

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        activity = self._watch.current
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
