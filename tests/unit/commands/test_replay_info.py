"""``distdiag replay-info``: what it takes to run one step again."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from distdiag import events
from distdiag.cli import cli
from distdiag.errors import DistdiagError
from tests.logs import Logs


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    made = Logs(world_size=2)
    for rank in made:
        rank.add(
            events.Loader(
                loader=1,
                time_ns=rank.now_ns,
                dataset="Pairs",
                length=12,
                batch_size=2,
                sampler="DistributedSampler",
                shuffle=True,
                seed=7,
                epoch=1,
                replicas=2,
                replica=rank.rank,
            )
        )
        for step in range(3):
            ids = [4 * step + rank.rank, 4 * step + 2 + rank.rank]
            rank.sleep(0.01).add(
                events.Batch(batch=step, edge="end", time_ns=rank.now_ns, step=step, loader=1, samples=2, ids=ids),
                events.Numerics(step=step, time_ns=rank.now_ns, loss=0.5 + step, rng={"torch.seed": 3, "torch": 255}),
            )
            rank.all_reduce()
            rank.end_step()
        rank.exit()
    return made.write(tmp_path)


def run(*arguments: str | int | Path) -> Result:
    return CliRunner().invoke(cli, ["replay-info", *map(str, arguments)])


def test_step_is_shown_with_seeds_samples_and_sampler(logs: Path) -> None:
    done = run(1, logs)

    assert done.exit_code == 0
    assert "Step 1 of train.py, as 2 of 2 ranks ran it" in done.output
    assert "rank 1  loss 1.5" in done.output
    assert "seed       3 (torch.initial_seed)" in done.output
    assert "1 of its epoch, 2 samples, ids 5 7" in done.output
    assert (
        "Pairs of 12 samples, DistributedSampler, shuffled, seed 7, epoch 1, share 1 of 2, batch size 2" in done.output
    )


def test_json_holds_the_same_for_machines(logs: Path) -> None:
    told: dict[str, Any] = json.loads(run(2, logs, "--format", "json", "--rank", "0").output)

    (rank,) = told["ranks"]
    assert (told["schema"], told["step"], rank["rank"], rank["loss"]) == ("distdiag.replay/1", 2, 0, 2.5)
    assert rank["random_states"] == {"torch": 255}
    (batch,) = rank["batches"]
    assert batch["facts"]["ids"] == [8, 10]
    assert batch["loader"]["epoch"] == 1


def test_step_that_nobody_recorded_is_one_clear_line(logs: Path) -> None:
    error = run(9, logs).exception

    assert isinstance(error, DistdiagError)
    assert error.message == f"nothing is known of step 9 in {logs}"
    assert error.hint == "steps 0 to 2 are recorded there"
