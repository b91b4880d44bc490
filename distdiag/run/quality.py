"""What is wrong with the logs of a run; said in findings and in the report, never guessed over."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """The defects of what was read. Files are named without their directory."""

    files: int
    bytes: int
    missing_ranks: tuple[int, ...] = ()
    """Ranks of the world without a readable log."""
    empty_files: tuple[str, ...] = ()
    unreadable_files: tuple[str, ...] = ()
    """Files without a single record in them."""
    unsupported_files: Mapping[str, str] = field(default_factory=dict)
    """Files of a newer schema, and its name."""
    undecodable_lines: Mapping[str, int] = field(default_factory=dict)
    """Damaged lines by file, a torn last line not counted."""
    torn_files: tuple[str, ...] = ()
    """Files whose last line is cut: normal for a rank that was killed."""
    cut_ranks: tuple[int, ...] = ()
    """Ranks whose logs were cut or copied in part: nobody knows what they did later."""
    unknown_kinds: Mapping[str, int] = field(default_factory=dict)
    dropped_records: Mapping[int, int] = field(default_factory=dict)
    """Records by rank that made room for newer ones or found no space."""
    unresolved_calls: int = 0
    """Calls whose signature record is lost, so that their op and group are unknown."""
    headerless_ranks: tuple[int, ...] = ()
    """Ranks whose logs lack their header, so that their clock is unknown."""
    doubled_ranks: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Ranks that several processes claimed, and their process ids."""
    nameless_files: tuple[str, ...] = ()
    """Logs of processes that never learned their rank."""
    world_sizes: tuple[int, ...] = ()
    """More than one where the ranks do not agree on the size of the world."""
    run: str | None = None
    other_runs: tuple[str, ...] = ()
    """Launches whose logs lie in the same directory and were left out."""
    older_attempts: tuple[int, ...] = ()
    clock_error_ns: int | None = None
    """What remains between the clocks of different hosts after alignment; 0 on one host, None when unknown."""
    clock_corrections_ns: Mapping[int, int] = field(default_factory=dict)
    window_bytes: int | None = None
    """Newest bytes per rank that were read; None when the logs were read whole."""
    measured_rows: Mapping[str, int] = field(default_factory=dict)
    """Rows of each table that other tools measured."""
    notes: tuple[str, ...] = ()
    """What could not be read of files of other tools, in words."""

    @property
    def whole(self) -> bool:
        """Return whether every rank's log is there, undamaged and with nothing dropped."""
        return not (self.missing_ranks or self.undecodable_lines or self.dropped_records or self.headerless_ranks)

    def as_dict(self) -> dict[str, Any]:
        """Return the report's ``data_quality``."""
        return asdict(self)
