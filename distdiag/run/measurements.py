"""What other tools measured: tables of operations and of profiled ranks, which are no records of a log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from distdiag import events
from distdiag.run.content import FRAMES
from distdiag.run.frames import CALL_COLUMNS, CRASH_COLUMNS, columns_of, empty

if TYPE_CHECKING:
    import pandas as pd

OPERATION_COLUMNS: Mapping[str, str] = {
    "rank": "int64",
    "dp": "int64",
    "stage": "int64",
    "step": "int64",
    "op": "category",
    "seq": "int64",
    "chunk": "int64",
    "microbatch": "int64",
    "global_chunk": "int64",
    "start_ns": "int64",
    "duration_ns": "int64",
}
"""One row per operation of a worker, which is one data-parallel rank of one pipeline stage. ``seq`` counts the
operations of one kind on one worker in one step, from 0; ``start_ns`` counts from the first operation of the step;
``chunk``, ``microbatch`` and ``global_chunk`` are -1 where they have no meaning."""

PROFILE_COLUMNS: Mapping[str, str] = {
    "rank": "int64",
    "file": "object",
    "device": "Int64",
    "steps": "object",
    "window_start_ns": "int64",
    "window_ns": "int64",
    "idle_ns": "int64",
    "compute_ns": "int64",
    "communication_ns": "int64",
    "exposed_ns": "int64",
    "memory_ns": "int64",
    "host_wait_ns": "int64",
    "kernel_wait_ns": "int64",
    "other_wait_ns": "int64",
    "activities": "int64",
    "without_launch": "int64",
    "in_last_step": "int64",
    "launch_delays_ns": "object",
    "streams": "object",
    "kernels": "object",
    "groups": "object",
    "per_step": "object",
    "notes": "object",
}
"""One row per trace file and device. Times are within the window, from the first start to the last end of what was
launched in the measured ``steps`` (numbers; empty where the whole trace counts). ``exposed_ns`` is communication
while no compute kernel ran; the three waits divide ``idle_ns``. ``activities`` are the kernels and copies that
count; where there is none, ``device`` is absent and all times are 0. ``launch_delays_ns`` holds what a tenth, half
and nine tenths of the work stay below from launch to start, None without launches. ``streams``, ``kernels``,
``groups`` and ``per_step`` are tuples of mappings with times in nanoseconds."""

COLLECTIVE_COLUMNS: Mapping[str, str] = {
    "rank": "int64",
    "file": "object",
    "group": "object",
    "step": "int64",
    "number": "int64",
    "start_ns": "int64",
    "duration_ns": "int64",
}
"""One row per communication kernel of a measured step of a profiled rank. ``group`` is the same text on all members
of a process group, or names the stream where the kernels name no group; ``number`` is c10d's where told, else counts
a group's kernels in a step, from 0."""


def no_operations() -> pd.DataFrame:
    """Return the frame of operations without rows."""
    return empty(OPERATION_COLUMNS)


def no_profiles() -> pd.DataFrame:
    """Return the frame of profiled devices without rows."""
    return empty(PROFILE_COLUMNS)


def no_collectives() -> pd.DataFrame:
    """Return the frame of profiled communication kernels without rows."""
    return empty(COLLECTIVE_COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measurements:
    """The tables that the files of other tools held."""

    operations: pd.DataFrame = field(default_factory=no_operations)
    profiles: pd.DataFrame = field(default_factory=no_profiles)
    collectives: pd.DataFrame = field(default_factory=no_collectives)
    world_size: int | None = None
    """Devices of the whole job, measured or not, where a file tells."""

    @property
    def rows(self) -> dict[str, int]:
        """Return the number of rows by table, of tables that have any."""
        tables = {"operations": self.operations, "profiles": self.profiles}
        return {name: len(table) for name, table in tables.items() if len(table)}


def frames_without_records() -> dict[str, pd.DataFrame]:
    """Return every frame of a run's records with its columns, and without rows."""
    frames = {name: empty(columns_of(kind)) for name, kind in FRAMES.items()}
    return frames | {
        "headers": empty(columns_of(events.Header)),
        "calls": empty(CALL_COLUMNS),
        "crashes": empty(CRASH_COLUMNS),
    }
