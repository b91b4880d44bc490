"""Files shared out to processes: all results, in order, whoever made them."""

import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from distdiag.importers import _sharing
from distdiag.importers._sharing import Shared

FILES = 40
PREPARED = """
    import os, sys, time
    from pathlib import Path
    from distdiag.importers import _sharing
    from distdiag.importers._sharing import Shared
    _sharing._processors = lambda: 3
    here = os.getpid()
    files = sorted(Path(sys.argv[1]).iterdir())
"""


def written(directory: Path) -> Path:
    folder = directory / "files"
    folder.mkdir()
    for number in range(FILES):
        (folder / f"{number:03}").write_bytes(bytes(_sharing.LEAST_BYTES // FILES + 1))
    return folder


def shared_out(directory: Path, code: str) -> str:
    """Run code in a process without other threads: only such a one can be copied."""
    program = textwrap.dedent(PREPARED) + textwrap.dedent(code)
    command = [sys.executable, "-c", program, str(written(directory))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_several_processes_make_results_in_the_order_of_files(tmp_path: Path) -> None:
    code = """
        def read(file):
            time.sleep(0.01)
            return int(file.name), os.getpid()
        results = list(Shared(read, files).results())
        print([number for number, _ in results] == list(range(40)), len({process for _, process in results}))
    """

    assert shared_out(tmp_path, code) == "True 3"


def test_what_a_process_had_taken_that_died_is_done_again(tmp_path: Path) -> None:
    code = """
        def read(file):
            if os.getpid() != here:
                os._exit(9)
            return int(file.name)
        shared = Shared(read, files)
        time.sleep(0.2)
        print(list(shared.results()) == list(range(40)))
    """

    assert shared_out(tmp_path, code) == "True"


def test_processes_end_with_what_began_them(tmp_path: Path) -> None:
    code = """
        shared = Shared(lambda file: time.sleep(60), files)
        processes = list(shared._workers)
        del shared
        left = [process for process in processes if Path(f"/proc/{process}").exists()]
        print(len(processes), left)
    """

    assert shared_out(tmp_path, code) == "2 []"


def test_a_process_of_several_threads_reads_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sharing, "_processors", lambda: 3)
    files = sorted(written(tmp_path).iterdir())
    waiting = threading.Event()
    thread = threading.Thread(target=waiting.wait)
    thread.start()

    shared = Shared(lambda file: file.name, files)
    waiting.set()
    thread.join()

    assert not shared._workers
    assert list(shared.results()) == [file.name for file in files]
