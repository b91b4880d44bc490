"""Where a call came from: interned paths of user frames, cheap enough for every collective."""

import os
import sys
import sysconfig
import zlib
from types import CodeType, FrameType
from typing import Any

BUDGET = 24
"""Frames walked from the innermost outwards: a frame costs about 40 ns, deep module trees have hundreds."""
USER_FRAME = 4
"""What a user's frame takes of the budget: six of them say enough."""
MAX_SITES = 20_000
"""Programs that compile code as they go would otherwise grow the tree for ever."""
SKIPPED_PACKAGES = ("torch", "typing_extensions")
OWN_FILES = (
    "hooks",
    "journal",
    "__init__.py",
    "__main__.py",
    "ancestry.py",
    "callsites.py",
    "commands/_launched.py",
    "commands/_program.py",
    "commands/run.py",
    "errors.py",
    "events.py",
    "identity.py",
    "recorder.py",
    "recording.py",
    "requests.py",
    "settings.py",
    "steps.py",
    "thinning.py",
)


class Site:
    """One path of user frames; interned, so that identity is equality within a process."""

    __slots__ = ("_code", "children", "digest", "frames", "number", "segment", "signatures")

    def __init__(self, code: CodeType | None, frames: list[str], number: int) -> None:
        self._code = code  # keeps the address in the parent's key from being reused
        self.children: dict[int, Site] = {}
        self.frames = frames
        self.number = number
        self.digest = zlib.crc32("\n".join(frames).encode())
        self.segment = -1
        self.signatures: dict[Any, Any] = {}


class CallSites:
    """A tree of call sites, innermost frame first."""

    def __init__(self) -> None:
        self._skipped: dict[str, bool] = {}
        self._own = ("<", *_own_prefixes())
        self._library = sysconfig.get_path("stdlib") + os.sep
        self._packages = _package_folders()
        self._skipped_packages = tuple(
            os.path.join(folder, package) + end
            for folder in self._packages
            for package in SKIPPED_PACKAGES
            for end in (os.sep, ".py")
        )
        self._size = self._last = 0
        self.nowhere = self._root = Site(None, [], 0)

    def at(self, frame: FrameType | None) -> Site:
        """Return the site of ``frame``: its user frames and its callers', ``nowhere`` if there are none."""
        site = self._root
        skipped = self._skipped
        budget = BUDGET
        inner = frame
        try:
            while inner is not None and budget > 0:
                code = inner.f_code
                if skipped[code.co_filename]:
                    budget -= 1
                else:
                    # An instruction's offset lies inside its code object, so the sum is unique among living objects.
                    site = site.children[id(code) + inner.f_lasti]
                    budget -= USER_FRAME
                inner = inner.f_back
        except KeyError:
            return self._at_first_sight(frame)
        return site

    def _at_first_sight(self, frame: FrameType | None) -> Site:
        """Do what ``at`` does where a file or a site is new."""
        site = self._root
        budget = BUDGET
        while frame is not None and budget > 0:
            filename = frame.f_code.co_filename
            if self._skipped[filename] if filename in self._skipped else self._skip(filename):
                budget -= 1
            else:
                child = site.children.get(id(frame.f_code) + frame.f_lasti)
                site = child if child is not None else self._grow(site, frame)
                budget -= USER_FRAME
            frame = frame.f_back
        return site

    def _grow(self, site: Site, frame: FrameType) -> Site:
        if self._size >= MAX_SITES:
            self._root.children.clear()
            self._size = 0
        self._size += 1
        self._last += 1
        child = Site(frame.f_code, [describe(frame), *site.frames], self._last)
        site.children[id(frame.f_code) + frame.f_lasti] = child
        return child

    def _skip(self, filename: str) -> bool:
        """Return whether a file is torch's, the standard library's (installed packages lie inside it) or our own."""
        if filename.startswith(self._packages):
            skip = filename.startswith((*self._skipped_packages, *self._own))
        else:
            skip = filename.startswith((self._library, *self._own))
        self._skipped[filename] = skip
        return skip

    def user_frames(self, frames: list[tuple[str, int, str]]) -> list[str]:
        """Return the user's part of ``(file, line, function)`` frames, in their order."""
        return [f"{file}:{line} {function}" for file, line, function in frames if not self._skip(file)]


def describe(frame: FrameType) -> str:
    """Return ``file:line function``; the line is 0 where another thread's frame has none."""
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno or 0} {code.co_name}"


def _package_folders() -> tuple[str, ...]:
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    loaded = sys.modules.get("torch")
    if loaded is not None and loaded.__file__:
        folders.add(os.path.dirname(os.path.dirname(loaded.__file__)))
    return tuple(folder + os.sep for folder in sorted(folders))


def _own_prefixes() -> set[str]:
    here = os.path.dirname(os.path.abspath(__file__))
    named = [os.path.join(here, own) for own in OWN_FILES]
    return {*named, *map(os.path.realpath, named)}
