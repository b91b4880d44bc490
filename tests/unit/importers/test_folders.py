"""Own logs in several folders: parts of one run are read as one, several runs are told apart."""

import shutil
from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.importers import SeveralRunsError, load
from tests import training_output as out
from tests.commandline import distdiag
from tests.logs import SECOND_NS, Logs

SITE = "/job/train.py:88 step"
SAMPLES = Path(__file__).parents[3] / "sample_logs"
LATER_NS = 3600 * SECOND_NS


def stuck(missing: int = 1, world: int = 4, run: str = "train@node-0:29500", **header: int) -> Logs:
    """Ranks of which one does not come to the second all_reduce; ``header`` moves the job in time."""
    logs = Logs(world_size=world, run=run)
    for rank in logs:
        rank.all_reduce(SITE)
        if rank.rank == missing:
            rank.sleep(30).exit()
        else:
            call = rank.all_reduce(SITE, pending=True)
            rank.sleep(30).done(call, error="RuntimeError: Timed out waiting 30000ms for recv operation to complete")
        for name, value in header.items():
            setattr(rank.header, name, value)
    return logs


def spread(logs: Logs, folder: Path, **where: tuple[int, ...]) -> Path:
    """Write logs into folders that have some of the ranks each."""
    logs.write(folder / "all")
    for name, ranks in where.items():
        (folder / name).mkdir(parents=True)
        for rank in ranks:
            (folder / "all" / f"rank{rank:05d}.jsonl").rename(folder / name / f"rank{rank:05d}.jsonl")
    shutil.rmtree(folder / "all")
    return folder


@pytest.mark.parametrize(
    "where",
    [{"host0": (0, 1), "host1": (2, 3)}, {f"rank_{rank}": (rank,) for rank in range(4)}, {"run": (0, 1, 2, 3)}],
    ids=["hosts", "ranks", "one folder further down"],
)
def test_parts_of_one_run_are_read_as_one(where: dict[str, tuple[int, ...]], tmp_path: Path) -> None:
    folder = spread(stuck(missing=2), tmp_path / "logs", **where)

    run = load(folder)

    assert run.ranks == (0, 1, 2, 3)
    assert diagnose(run).verdict.culprits == (2,)


def test_folders_that_are_named_one_by_one_are_one_run(tmp_path: Path) -> None:
    folder = spread(stuck(missing=2), tmp_path, host0=(0, 1), host1=(2, 3))

    assert load(folder / "host0", folder / "host1").ranks == (0, 1, 2, 3)


def test_logs_that_are_named_one_by_one_are_one_run(tmp_path: Path) -> None:
    stuck().write(tmp_path)

    assert load(*sorted(tmp_path.glob("rank0000[13].jsonl"))).ranks == (1, 3)


def test_runs_below_a_folder_are_named_the_newest_first(tmp_path: Path) -> None:
    stuck().write(tmp_path / "monday")
    stuck(wall_ns=events_later()).write(tmp_path / "tuesday")

    with pytest.raises(SeveralRunsError) as caught:
        load(tmp_path)

    assert caught.value.message == f"{tmp_path} holds the logs of 2 runs: {tmp_path}/tuesday, {tmp_path}/monday"
    assert caught.value.hint == f"pass one of them; the newest is {tmp_path}/tuesday"


def events_later() -> int:
    """Return the wall time of a job that began an hour after the others."""
    return Logs(world_size=1)[0].header.wall_ns + LATER_NS


def test_a_later_attempt_in_a_folder_of_its_own_is_the_one_to_analyse(tmp_path: Path) -> None:
    stuck(missing=1).write(tmp_path / "attempt_0")
    stuck(missing=3, run="train@node-0:41234", wall_ns=events_later()).write(tmp_path / "attempt_1")

    run = load(tmp_path)

    assert diagnose(run).verdict.culprits == (3,)
    assert len(run.earlier) == 1


def test_a_copy_of_the_logs_is_no_second_run(tmp_path: Path) -> None:
    stuck(missing=2).write(tmp_path / "logs")
    shutil.copytree(tmp_path / "logs", tmp_path / "backup")
    (tmp_path / "latest").symlink_to(tmp_path / "logs")

    assert diagnose(load(tmp_path)).verdict.culprits == (2,)


def test_old_logs_below_the_new_ones_are_left_out_and_named(tmp_path: Path) -> None:
    stuck(missing=1, wall_ns=events_later()).write(tmp_path)
    stuck(missing=3).write(tmp_path / "old")
    (tmp_path / "old" / "train.log").write_text(out.text(out.traceback(out.out_of_memory(0), rank=0)))

    run = load(tmp_path)

    assert diagnose(run).verdict.culprits == (1,)
    assert run.quality.notes == (f"the logs in {tmp_path}/old are of another run: analyse them by themselves",)


def test_renamed_logs_are_known_by_their_first_record(tmp_path: Path) -> None:
    stuck(missing=2).write(tmp_path)
    for number, file in enumerate(sorted(tmp_path.iterdir())):
        file.rename(tmp_path / f"{file.name}{('.txt', '.log', '.JSONL', '.json')[number]}")

    assert load(tmp_path).ranks == (0, 1, 2, 3)


def test_what_editors_and_copying_leave_is_not_read(tmp_path: Path) -> None:
    stuck(missing=2).write(tmp_path)
    for suffix in ("~", ".bak", ".part", ".swp"):
        shutil.copy(tmp_path / "rank00000.jsonl", tmp_path / f"rank00000.jsonl{suffix}")
    shutil.copy(tmp_path / "rank00000.jsonl", tmp_path / ".nfs0000000001")

    run = load(tmp_path)

    assert run.quality.doubled_ranks == {}
    assert run.ranks == (0, 1, 2, 3)


def test_a_survey_tells_each_run_its_verdict_and_its_command(tmp_path: Path) -> None:
    stuck(missing=1).write(tmp_path / "a run")
    (tmp_path / "empty").mkdir()
    shutil.copytree(SAMPLES / "healthy", tmp_path / "healthy")

    done = distdiag("analyze", tmp_path)

    assert done.returncode == 1
    assert done.stdout.startswith(f"2 runs in {tmp_path}, the newest first\n")
    assert f"HEALTHY         distdiag analyze {tmp_path}/healthy\n" in done.stdout
    assert f"distdiag analyze '{tmp_path}/a run'\n" in done.stdout


def test_a_survey_of_healthy_runs_is_healthy(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "healthy", tmp_path / "one")
    healthy = Logs(world_size=2)
    for rank in healthy:
        rank.all_reduce(SITE)
        rank.exit()
    healthy.write(tmp_path / "two")

    assert distdiag("analyze", tmp_path).returncode == 0


def test_a_report_for_machines_is_of_one_run(tmp_path: Path) -> None:
    stuck().write(tmp_path / "monday")
    stuck(wall_ns=events_later()).write(tmp_path / "tuesday")

    done = distdiag("analyze", tmp_path, "--format", "json")

    assert (done.returncode, done.stdout) == (2, "")
    assert f"{tmp_path} holds the logs of 2 runs" in done.stderr


def test_an_empty_folder_and_one_of_other_things_are_told_apart(tmp_path: Path) -> None:
    empty = distdiag("analyze", tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"\x00\x01\x02")
    other = distdiag("analyze", tmp_path)

    assert (empty.returncode, other.returncode) == (2, 2)
    assert f"no logs in {tmp_path}: there is nothing in it" in empty.stderr
    assert f"nothing in {tmp_path} is understood: 1 file of no kind that is known: weights.bin" in other.stderr
