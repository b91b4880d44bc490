"""Logs for a directory on a network file system: written on the node, shipped by a thread."""

import contextlib
import hashlib
import os
import re
import stat
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TypeVar

from distdiag.errors import logger
from distdiag.journal.segments import LogFile, attempts_in, beside, file_name, reserve

PATIENCE_SECONDS = 2.0
"""How long the training process waits for a network file system, and only when a log begins or ends."""
BATCH_BYTES = 8 << 20
"""What is read at once for shipping; a second of recording makes less."""

MOUNTS = Path("/proc/self/mountinfo")
MEMORY = Path("/dev/shm")
NETWORK_TYPES = frozenset(
    [
        "9p",
        "afs",
        "autofs",
        "beegfs",
        "ceph",
        "cifs",
        "fuse",
        "glusterfs",
        "gpfs",
        "lustre",
        "nfs",
        "nfs4",
        "orangefs",
        "panfs",
        "pvfs2",
        "smb3",
        "smbfs",
        "vboxsf",
        "virtiofs",
        "wekafs",
    ]
)
LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs"})
"""The root of a rootless container."""

T = TypeVar("T")


def is_network_filesystem(directory: Path) -> bool:
    """Tell whether a directory, existing or not, is or would be on a file system that other machines serve."""
    path = os.path.realpath(directory)
    if not MOUNTS.exists():
        return False
    longest, kind = "", ""
    for line in MOUNTS.read_text(errors="surrogateescape").splitlines():
        fields = line.split(" ")
        mount = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        # Of several mounts on one point the last is the one that is seen.
        if len(mount) >= len(longest) and (path + "/").startswith(mount.rstrip("/") + "/"):
            longest, kind = mount, fields[fields.index("-") + 1]
    return kind in NETWORK_TYPES or (kind.startswith("fuse.") and kind not in LOCAL_FUSE)


def within_patience(ask: Callable[[], T], otherwise: T) -> T:
    """Return what ``ask`` returns; ``otherwise`` if it fails or the file system hangs."""
    answers: list[T] = []

    def run() -> None:
        try:
            answers.append(ask())
        except OSError:
            logger.debug("distdiag got no answer from a file system", exc_info=True)

    thread = threading.Thread(target=run, name="distdiag-ask", daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    return answers[0] if answers else otherwise


def local_directory(target: Path) -> Path | None:
    """Return a private directory on this node for logs that belong into ``target``; None on a node without disk."""
    for parent in (Path(tempfile.gettempdir()), MEMORY):
        if parent.is_dir() and not is_network_filesystem(parent):
            break
    else:
        return None
    private = parent / f"distdiag-{os.getuid()}"
    with contextlib.suppress(OSError):
        private.mkdir(mode=0o700, exist_ok=True)
    if not _is_private(private):  # somebody else was there first
        private = Path(tempfile.mkdtemp(prefix="distdiag-", dir=parent))
    directory = private / hashlib.sha256(os.fsencode(target)).hexdigest()[:12]
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def _is_private(directory: Path) -> bool:
    try:
        status = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


class Shipper:
    """Copies the files of one log to its directory, on a thread that may hang there.

    ``offer`` reads what is new on this node and hands it to the thread as a list of acts, each of which may
    be done again after a failure. While the thread is busy or the directory fails, nothing more is read.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._name = ("", 0)
        self._reserved: tuple[str, int] | None = None
        self._paths: dict[int, Path] = {}
        self._shipped: dict[int, tuple[int, int]] = {}
        self._acts: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="distdiag-ship", daemon=True)
        self._thread.start()

    def attempts(self, stem: str) -> set[int]:
        """Return the attempts that other processes shipped, as far as the directory answers."""
        return within_patience(partial(self._attempts, stem), otherwise=set())

    def _attempts(self, stem: str) -> set[int]:
        try:
            return attempts_in(self._directory, stem)
        except FileNotFoundError:
            return set()

    def rename(self, stem: str, attempt: int) -> None:
        """Give the shipped files the log's name, at first or anew."""
        self._hand_over([partial(self._rename, stem, attempt)])

    def offer(self, files: Sequence[LogFile]) -> bool:
        """Hand over a batch of what is new in ``files``; return whether there was anything or still is."""
        if self._acts:
            with self._changed:
                self._changed.notify_all()  # try again what failed
            return True
        acts: list[Callable[[], None]] = []
        budget = BATCH_BYTES
        for file in files:
            condensed, offset = self._shipped.get(file.number, (file.condensed, 0))
            replaced = condensed != file.condensed
            if budget <= 0 or (offset >= file.size_bytes and not replaced):
                continue
            data = _new_lines(file.path, 0 if replaced else offset, file.size_bytes if replaced else budget)
            if replaced:
                acts.append(partial(self._replace, file.number, data))
                offset = 0
            elif data:
                acts.append(partial(self._write, file.number, offset, data))
            budget -= len(data)
            self._shipped[file.number] = (file.condensed, offset + len(data))
        for number in self._shipped.keys() - {file.number for file in files}:
            acts.append(partial(self._remove, number))
            del self._shipped[number]
        self._hand_over(acts)
        return bool(acts)

    def finish(self, files: Sequence[LogFile]) -> bool:
        """Ship the rest and stop the thread, or leave it hanging; return whether everything is shipped."""
        deadline = monotonic() + PATIENCE_SECONDS
        complete = False
        while not complete and monotonic() < deadline:
            complete = not self.offer(files)
            with self._changed:
                self._changed.wait_for(lambda: not self._acts, deadline - monotonic())
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self._thread.join(max(deadline - monotonic(), 0))
        return complete

    def _hand_over(self, acts: Sequence[Callable[[], None]]) -> None:
        with self._changed:
            self._acts.extend(acts)
            self._changed.notify_all()

    def _run(self) -> None:
        while not self._ending:
            failed = not self._do_all()
            with self._changed:
                if not self._ending and (failed or not self._acts):
                    self._changed.wait()

    def _do_all(self) -> bool:
        while self._acts:
            try:
                self._acts[0]()
            except OSError:
                logger.debug("distdiag cannot ship to %s now", self._directory, exc_info=True)
                return False
            with self._changed:
                self._acts.popleft()
                self._changed.notify_all()
        return True

    def _path(self, number: int) -> Path:
        """Return the path of a file in the directory, after moving it there from an earlier name."""
        if self._reserved is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            stem, attempt = self._name
            self._reserved = stem, reserve(self._directory, stem, attempt, set())
            self._paths.setdefault(0, self._directory / file_name(*self._reserved, 0))
        path = self._directory / file_name(*self._reserved, number)
        before = self._paths.get(number, path)
        if before != path:
            os.replace(before, path)
        self._paths[number] = path
        return path

    def _write(self, number: int, offset: int, data: bytes) -> None:
        file = os.open(self._path(number), os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            while data:
                written = os.pwrite(file, data, offset)
                offset += written
                data = data[written:]
        finally:
            os.close(file)

    def _replace(self, number: int, data: bytes) -> None:
        path = self._path(number)
        new = beside(path, "shipped")
        new.write_bytes(data)
        os.replace(new, path)

    def _remove(self, number: int) -> None:
        self._path(number).unlink(missing_ok=True)
        del self._paths[number]

    def _rename(self, stem: str, attempt: int) -> None:
        self._name = (stem, attempt)
        if self._reserved and self._reserved[0] != stem:
            self._reserved = None
        for number in list(self._paths):
            self._path(number)


def _new_lines(path: Path, offset: int, limit: int) -> bytes:
    """Return whole lines from ``offset`` on, about ``limit`` bytes of them but at least one if there is any."""
    with path.open("rb", buffering=0) as file:
        while True:
            data = os.pread(file.fileno(), limit, offset)
            written, nul, _ = data.partition(b"\0")
            end = written.rfind(b"\n") + 1
            if end or nul or len(data) < limit:
                return written[:end]
            limit *= 2
