"""``distdiag run`` has to be indistinguishable from the interpreter for the script that it runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CAP_SECONDS = 150

SELF_PORTRAIT = """
import json, multiprocessing, sys
main = sys.modules["__main__"]
print(json.dumps({
    "argv": sys.argv,
    "search_path": sys.path[0],
    "name": __name__,
    "file": __file__,
    "package": __package__,
    "spec": __spec__ and __spec__.name,
    "loader": type(__loader__).__name__,
    "is_main": main.__dict__ is globals(),
    "names": sorted(set(globals()) - {"__annotations__"}),
}))
"""


def python(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DISTDIAG_DIR": str(cwd / "logs"), "DISTDIAG_RAISE": "", **variables}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=CAP_SECONDS
    )


def run(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "distdiag", "run", *arguments, cwd=cwd, **variables)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_script_sees_what_python_would_show_it(tmp_path: Path) -> None:
    write(tmp_path / "jobs" / "train.py", SELF_PORTRAIT)
    arguments = ("jobs/train.py", "--lr", "3", "-m", "--dir", "x")

    recorded = run("--stall-after", "9", *arguments, cwd=tmp_path)

    bare = python(*arguments, cwd=tmp_path)
    assert json.loads(recorded.stdout) == json.loads(bare.stdout), recorded.stderr
    assert recorded.stderr == bare.stderr == ""


def test_installed_command_shows_the_script_the_same(tmp_path: Path) -> None:
    write(tmp_path / "jobs" / "train.py", SELF_PORTRAIT)
    command = str(Path(sys.executable).with_name("distdiag"))

    recorded = python(command, "run", "jobs/train.py", "x", cwd=tmp_path)

    bare = python("jobs/train.py", "x", cwd=tmp_path)
    assert json.loads(recorded.stdout) == json.loads(bare.stdout), recorded.stderr


@pytest.mark.parametrize("target", ["jobs.train", "jobs"])
def test_module_sees_what_python_would_show_it(tmp_path: Path, target: str) -> None:
    write(tmp_path / "jobs" / "__init__.py", "")
    write(tmp_path / "jobs" / "train.py", SELF_PORTRAIT)
    write(tmp_path / "jobs" / "__main__.py", SELF_PORTRAIT)

    recorded = run("-m", target, "--lr", "3", cwd=tmp_path)

    bare = python("-m", target, "--lr", "3", cwd=tmp_path)
    assert json.loads(recorded.stdout) == json.loads(bare.stdout), recorded.stderr


def test_folder_with_a_main_is_run_as_python_would(tmp_path: Path) -> None:
    write(tmp_path / "job" / "__main__.py", SELF_PORTRAIT)

    recorded = run("job", "x", cwd=tmp_path)

    bare = python("job", "x", cwd=tmp_path)
    assert json.loads(recorded.stdout) == json.loads(bare.stdout), recorded.stderr


@pytest.mark.parametrize(
    "text", ["raise SystemExit(7)", "import os; os._exit(5)", "import sys; sys.exit('no')", "", "import os; os.abort()"]
)
def test_exit_code_passes_through(tmp_path: Path, text: str) -> None:
    write(tmp_path / "train.py", text)

    recorded = run("train.py", cwd=tmp_path)

    bare = python("train.py", cwd=tmp_path)
    assert recorded.returncode == bare.returncode


@pytest.mark.parametrize(
    "text", ["def f():\n    raise ValueError('bad sample')\nf()", "x ===", "import nowhere_to_be_found"]
)
def test_traceback_is_the_one_that_python_prints(tmp_path: Path, text: str) -> None:
    write(tmp_path / "train.py", text)

    recorded = run("train.py", cwd=tmp_path)

    bare = python("train.py", cwd=tmp_path)
    assert recorded.stderr == bare.stderr
    assert recorded.returncode == bare.returncode == 1


def test_classes_of_the_script_can_be_pickled_by_spawned_processes(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        "import multiprocessing\n"
        "class Sample: pass\n"
        "def name(sample): return type(sample).__name__\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(name, [Sample()]))\n",
    )

    recorded = run("train.py", cwd=tmp_path)

    assert recorded.stdout == "['Sample']\n", recorded.stderr


@pytest.mark.parametrize("arguments", [("nowhere.py",), ("-m", "nowhere.at_all"), (".",)])
def test_missing_script_is_one_line_and_a_hint(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    recorded = run(*arguments, cwd=tmp_path)

    assert recorded.returncode == 2
    error, hint = recorded.stderr.splitlines()
    assert error.startswith("error: no ")
    assert hint.startswith("hint: ")


def test_import_error_inside_a_package_is_not_taken_for_a_missing_module(tmp_path: Path) -> None:
    write(tmp_path / "jobs" / "__init__.py", "import not_installed")
    write(tmp_path / "jobs" / "train.py", "")

    recorded = run("-m", "jobs.train", cwd=tmp_path)

    assert "No module named 'not_installed'" in recorded.stderr
    assert recorded.returncode == 1


@pytest.mark.parametrize("arguments", [(), ("--stall-after", "soon", "train.py"), ("--nonsense", "train.py")])
def test_bad_usage_exits_with_2(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    recorded = run(*arguments, cwd=tmp_path)

    assert recorded.returncode == 2
    assert "Usage: distdiag run" in recorded.stderr


def test_script_runs_although_recording_cannot_start(tmp_path: Path) -> None:
    write(tmp_path / "train.py", "print('trained')")
    blocked = write(tmp_path / "a file", "")

    recorded = run("--dir", str(blocked / "logs"), "train.py", cwd=tmp_path)

    assert recorded.stdout == "trained\n"
    assert recorded.stderr.startswith("distdiag: nothing is recorded (")
    assert recorded.returncode == 0


def test_setting_that_is_no_number_is_named_and_the_script_runs(tmp_path: Path) -> None:
    write(tmp_path / "train.py", "print('trained')")

    recorded = run("train.py", cwd=tmp_path, DISTDIAG_STALL_AFTER="soon")

    assert recorded.stdout == "trained\n"
    assert "DISTDIAG_STALL_AFTER='soon' is not a number" in recorded.stderr


def test_switched_off_means_silent(tmp_path: Path) -> None:
    write(tmp_path / "train.py", "print('trained')")

    recorded = run("train.py", cwd=tmp_path, DISTDIAG="off")

    assert (recorded.stdout, recorded.stderr) == ("trained\n", "")
    assert not (tmp_path / "logs").exists()


def test_training_process_does_not_load_the_command_line(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        "import sys\n"
        "heavy = {'click', 'rich', 'pandas', 'duckdb', 'ibis', 'torch', 'numpy', 'distdiag.cli', 'distdiag.run'}\n"
        "print(sorted(heavy & set(sys.modules)))",
    )

    recorded = run("train.py", cwd=tmp_path)

    assert recorded.stdout == "[]\n", recorded.stderr


def test_recording_writes_a_log_where_it_is_told(tmp_path: Path) -> None:
    write(tmp_path / "train.py", "")

    recorded = run("--dir", "elsewhere", "train.py", cwd=tmp_path, RANK="3")

    assert (tmp_path / "elsewhere" / "rank00003.jsonl").stat().st_size, recorded.stderr
