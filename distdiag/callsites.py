"""Where a call came from: interned paths of user frames, cheap enough for every collective."""

import os
import sys
import sysconfig
import zlib
from types import CodeType, FrameType
from typing import Any

MAX_FRAMES = 24
"""Frames walked from the innermost outwards: a frame costs about 40 ns, deep module trees have hundreds."""
MAX_USER_FRAMES = 6
MAX_SITES = 20_000
"""Programs that compile code as they go would otherwise grow the tree for ever."""
SKIPPED_PACKAGES = ("torch", "typing_extensions")
OWN_FILES = (
    "hooks",
    "__init__.py",
    "__main__.py",
    "callsites.py",
    "commands/_program.py",
    "commands/run.py",
    "errors.py",
    "journal.py",
    "recorder.py",
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
        left = MAX_USER_FRAMES
        for _ in range(MAX_FRAMES):
            if frame is None:
                break
            code = frame.f_code
            skip = skipped.get(code.co_filename)
            if skip is None:
                skip = self._skip(code.co_filename)
            if not skip:
                # An instruction's offset lies inside its code object, so the sum is unique among living objects.
                key = id(code) + frame.f_lasti
                child = site.children.get(key)
                site = child if child is not None else self._grow(site, key, frame)
                left -= 1
                if not left:
                    break
            frame = frame.f_back
        return site

    def of_thread(self, thread_id: int) -> Site:
        """Return the site at which another thread is now."""
        return self.at(sys._current_frames().get(thread_id))

    def _grow(self, site: Site, key: int, frame: FrameType) -> Site:
        if self._size >= MAX_SITES:
            self._root.children.clear()
            self._size = 0
        self._size += 1
        self._last += 1
        child = Site(frame.f_code, [describe(frame), *site.frames], self._last)
        site.children[key] = child
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
