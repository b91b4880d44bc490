"""Checkpoints on disk: whether one is whole, without torch and without running anything that it holds."""

import re
import time
from dataclasses import replace
from pathlib import Path

from distdiag.checkpoints.files import checkpoint_files, verify_files
from distdiag.checkpoints.problems import CODES, CORRUPT, INCOMPLETE, WHOLE, Facts, Problem, Trial, Verification
from distdiag.checkpoints.records import Stamp, digest_of, write_stamp
from distdiag.checkpoints.sharded import Told, is_sharded, verify_sharded
from distdiag.errors import DistdiagError

__all__ = [
    "CODES",
    "CORRUPT",
    "INCOMPLETE",
    "WHOLE",
    "Facts",
    "Problem",
    "Told",
    "Trial",
    "Verification",
    "stamp",
    "verify",
]

MOST_TRIED = 5
"""Earlier checkpoints that are looked at when one is damaged."""
LAST_NUMBER = re.compile(r"(\d+)(?!.*\d)")

_TO_DO = {
    "missing-file": "copy {file} again from where this checkpoint came, or save again",
    "empty-file": "copy {file} again from where this checkpoint came, or save again",
    "truncated": "copy {file} again: a copy that was interrupted, or a full disk, leaves such a file",
    "renamed": "rename the file back",
    "swapped": "rename the two files back",
    "permissions": "chmod u+r {file}",
    "metadata-refused": "do not load it: loading runs what its metadata names; ask who wrote it",
}


def verify(path: Path, told: Told | None = None, *, contents: bool = True) -> Verification:
    """Verify the checkpoint in a folder, or in a file.

    ``contents=False`` looks only at names and sizes. Raises ``DistdiagError`` where there is no checkpoint.
    """
    found = _verified(path, told or Told(), contents=contents)
    if found.outcome == WHOLE:
        return found
    return replace(found, action=_action(path, found))


def stamp(path: Path, found: Verification) -> bool:
    """Leave the outcome inside a sharded checkpoint, for who reads the run's logs; return whether it could be."""
    if found.facts.kind != "sharded" or not found.facts.contents_read:
        return False
    summary = found.problems[0].summary if found.problems else "it is whole"
    return write_stamp(
        path,
        Stamp(
            outcome=found.outcome,
            summary=summary,
            wall_ns=time.time_ns(),
            metadata_digest=digest_of(path),
            hashed=found.facts.hashed == "all",
        ),
    )


def _verified(path: Path, told: Told, *, contents: bool) -> Verification:
    if not path.exists():
        raise DistdiagError(f"no such file or folder: {path}", "pass the folder that the checkpoint was saved to")
    if path.is_dir() and is_sharded(path):
        return verify_sharded(path, told, contents=contents)
    files = checkpoint_files(path)
    if files:
        return verify_files(path, files, told, contents=contents)
    inside = sorted(each.name for each in path.iterdir() if each.is_dir() and _holds(each))
    hint = f"is it one of {', '.join(inside[:MOST_TRIED])}?" if inside else "pass the folder that holds .metadata"
    raise DistdiagError(f"no checkpoint in {path}", hint)


def _holds(path: Path) -> bool:
    return path.is_dir() and (is_sharded(path) or bool(checkpoint_files(path)))


def _action(path: Path, found: Verification) -> tuple[str, ...]:
    """Say what to do: which earlier checkpoint to use, and what may mend this one."""
    earlier = _earlier(path)
    use = (
        f"use {earlier}: all of its files are there (their contents were not read: verify it first)"
        if earlier is not None
        else f"no whole earlier checkpoint lies beside it in {path.absolute().parent}"
    )
    mend = dict.fromkeys(
        _TO_DO[problem.kind].format(file=problem.file) for problem in found.problems if problem.kind in _TO_DO
    )
    return (use, *mend)


def _earlier(path: Path) -> Path | None:
    """Return the newest checkpoint beside this one that was saved before it and has all its files."""
    own = _order(path)
    candidates = [
        each
        for each in path.absolute().parent.iterdir()
        if each.name != path.absolute().name and each.is_dir() == path.is_dir() and _order(each) < own
    ]
    for each in sorted(candidates, key=_order, reverse=True)[:MOST_TRIED]:
        try:
            if _verified(each, Told(), contents=False).outcome == WHOLE:
                return each
        except (DistdiagError, OSError):
            continue
    return None


def _order(path: Path) -> tuple[int, float]:
    """Order checkpoints by the number in their names, else by their age."""
    number = LAST_NUMBER.search(path.name)
    return (int(number[1]) if number else -1), path.stat().st_mtime
