"""What goes on in each thread while a checkpoint is saved or loaded, and how it is recorded."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distdiag import events
from distdiag.checkpoints.records import FileRecord, in_words, write_record
from distdiag.recorder import Recorder

SAVE, STAGE, UPLOAD, LOAD = "checkpoint save", "checkpoint stage", "checkpoint upload", "checkpoint load"
"""Phases. An asynchronous save is staged by the training thread and uploaded by another one."""
SHARDED = "sharded"
MOST_PER_STEP = 16
"""Single files written or read in one step that are recorded: a data set that is stored with ``torch.save`` is read
file by file, and phases are kept for ever."""


@dataclass(slots=True, kw_only=True)
class Activity:
    """A save or load that is going on in one thread."""

    phase: events.Phase
    named: bool
    """Whether calls of the main thread carry the phase: they do unless the user has named one."""
    step: int
    directory: Path | None
    bytes: int = 0
    files: dict[str, str] = field(default_factory=dict)


class _Threads(threading.local):
    """The activity of this thread; what it calls in turn belongs to it."""

    current: Activity | None = None


class Activities:
    """The saves and loads of this process, by the thread in which they go on."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._threads = _Threads()
        self._staged: dict[str, int] = {}
        """Step at which a folder's asynchronous save was staged."""
        self._counted = (0, 0)

    def begin(self, phase: str, form: str, directory: Path | None) -> Activity | None:
        """Begin an activity of this thread; None inside of another one, and in a process that is no rank."""
        recorder, threads = self._recorder, self._threads
        if threads.current is not None or os.getpid() != recorder.pid:
            return None
        main = threading.get_ident() == recorder.main_thread
        if not main and phase == SAVE and form == SHARDED:
            phase = UPLOAD
        facts = {"format": form, "directory": str(directory) if directory is not None else None}
        named = main and not recorder.user_phases
        begin = recorder.enter_user_phase if named else recorder.begin_phase
        step = self._staged.pop(str(directory), recorder.step) if phase == UPLOAD else recorder.step
        activity = threads.current = Activity(phase=begin(phase, **facts), named=named, step=step, directory=directory)
        if phase == STAGE:
            self._staged[str(directory)] = recorder.step
        return activity

    def end(self, activity: Activity, *, failed: bool) -> None:
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
    def current(self) -> Activity | None:
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

    def keep(self, activity: Activity, record: FileRecord) -> None:
        """Note a file that was written, in the log and, for a sharded checkpoint, beside it."""
        activity.files[record.file] = in_words(record)
        if activity.directory is not None and activity.phase.format == SHARDED:
            write_record(activity.directory, record)

    def record(self, activity: Activity, name: str, size: int, **facts: Any) -> FileRecord:
        """Return the record of a file that this rank wrote."""
        return FileRecord(
            file=name,
            size_bytes=size,
            rank=self._recorder.rank,
            world_size=self._recorder.identity.world_size,
            step=activity.step,
            wall_ns=time.time_ns(),
            **facts,
        )
