"""Whether a folder is one that can be watched, and if not, where the logs are or what to do instead."""

import shlex
from pathlib import Path

from distdiag.errors import DistdiagError
from distdiag.journal.segments import place_of, rank_of

MOST_FOLDERS = 1000
"""Looked into, one level down."""
MOST_NAMED = 3


def objection(logs: Path) -> DistdiagError | None:
    """Return why nothing will be seen in ``logs``, as far as what lies there now tells; None where something may."""
    if logs.is_file():
        return DistdiagError(
            f"{logs} is a file: what is watched is the folder that a job records into",
            f"analyse the file: distdiag analyze {shlex.quote(str(logs))}",
        )
    try:
        inside = sorted(logs.iterdir()) if logs.is_dir() else []
        if any(place_of(path.name) is not None for path in inside):
            return None
        folders = [path for path in inside[:MOST_FOLDERS] if path.is_dir() and _has_logs(path)]
        newest = max(folders, key=lambda folder: (folder.stat().st_mtime_ns, folder.name), default=logs)
    except OSError:
        return None  # whoever looks tells what is wrong
    if folders:
        names = ", ".join(map(str, folders[:MOST_NAMED])) + (", …" if len(folders) > MOST_NAMED else "")
        return DistdiagError(
            f"no logs in {logs} itself, but in {len(folders)} of its folders: {names}",
            f"watch one of them: distdiag watch {shlex.quote(str(newest))}",
        )
    files = [path.name for path in inside if path.is_file()]
    if files:
        return DistdiagError(
            f"nothing in {logs} is a log that recording writes: {', '.join(files[:MOST_NAMED])}"
            + (" …" if len(files) > MOST_NAMED else ""),
            f"what a job prints, and dumps, are analysed: distdiag analyze {shlex.quote(str(logs))}",
        )
    return None


def _has_logs(folder: Path) -> bool:
    places = (place_of(path.name) for path in folder.iterdir())
    return any(place is not None and rank_of(place[0]) is not None for place in places)
