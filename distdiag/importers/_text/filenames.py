"""Ranks and attempts that the names of files tell."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

MAX_RANK = 1 << 17
"""Greater numbers are dates, jobs and damage."""

_NAMED = re.compile(r"(?:^|[^a-z])(?:global_?rank|rank|worker|process|proc|task|gpu(?!0\d))[-_.=]?(\d+)", re.IGNORECASE)
"""Numbers that are padded behind ``gpu`` are those of hosts."""
_FOLDER = re.compile(r"(?:global_?rank|rank|worker|process|proc|task|gpu(?!0\d))[-_.=]?(\d+)", re.IGNORECASE)
_ATTEMPT = re.compile(r"attempt[-_]?(\d+)", re.IGNORECASE)
_OUTPUTS = frozenset({"stdout.log", "stderr.log", "stdout", "stderr", "error.log", "error.json"})
"""What torchrun's ``--log-dir`` calls the files in the folder of each local rank."""
_NUMBER = re.compile(r"\d+")


def ranks_of(files: Sequence[Path]) -> Mapping[Path, int]:
    """Return the ranks that names tell: ``rank3.err``, ``attempt_0/3/stderr.log``, or siblings numbered from 0."""
    named = {file: rank for file in files if (rank := _named(file)) is not None}
    outputs = [(file.name, file.parent.name, attempt_of(file)) for file in named if file.name in _OUTPUTS]
    if len(set(outputs)) < len(outputs):  # hosts have a folder each, and number their ranks alike
        named = {file: rank for file, rank in named.items() if file.name not in _OUTPUTS}
    return named or numbered(files)


def attempt_of(file: Path) -> int:
    """Return the attempt that a path tells, 0 if none."""
    found = [int(match[1]) for part in file.parts if (match := _ATTEMPT.fullmatch(part) or _ATTEMPT.search(part))]
    return found[-1] if found and found[-1] < MAX_RANK else 0


def _named(file: Path) -> int | None:
    if file.name in _OUTPUTS and file.parent.name.isdecimal():
        return _small(file.parent.name)
    found = _NAMED.findall(file.name)
    if not found:
        folders = (_FOLDER.fullmatch(folder.name) for folder in (file.parent, file.parent.parent))
        found = [match[1] for match in folders if match][:1]
    return _small(found[-1]) if found else None


def numbered(files: Sequence[Path]) -> Mapping[Path, int]:
    """Return the numbers of files whose names differ in one number only, if they count from 0 without a gap."""
    shapes: dict[str, dict[int, Path]] = {}
    for file in files:
        # A folder for each rank is as good as a name.
        for before, name, behind in ((f"{file.parent}/", file.name, ""), *_in_folder(file)):
            for match in _NUMBER.finditer(name):
                number = _small(match[0])
                if number is not None:
                    shape = f"{before}{name[: match.start()]}#{name[match.end() :]}{behind}"
                    shapes.setdefault(shape, {})[number] = file
    for alike in sorted(shapes.values(), key=len, reverse=True):
        if len(alike) > 1 and sorted(alike) == list(range(len(alike))):
            return {file: number for number, file in alike.items()}
    return {}


def _in_folder(file: Path) -> tuple[tuple[str, str, str], ...]:
    folder, above = file.parent, file.parent.parent
    return (
        (f"{above}/", folder.name, f"/{file.name}"),
        (f"{above.parent}/", above.name, f"/{folder.name}/{file.name}"),
    )


def _small(digits: str) -> int | None:
    return int(digits) if len(digits) <= 7 and int(digits) < MAX_RANK else None
