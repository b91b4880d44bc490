"""Every sample folder is found to be what it is, whatever the order of its files and the numbers of its ranks."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from distdiag import events
from distdiag.analyzers import diagnose
from distdiag.commands.scenarios import SCENARIOS
from distdiag.findings import Report, as_json
from distdiag.run import load

SAMPLES = Path(__file__).parents[2] / "sample_logs"
NAMES = sorted(each.name for each in SAMPLES.iterdir() if each.is_dir())
RELABELLED = {0: 2, 1: 3, 2: 1, 3: 0}


def expected(sample: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((SAMPLES / sample / "expected.json").read_text())
    return content


def analysed(logs: Path) -> Report:
    return diagnose(load(logs))


def assert_subset(wanted: Mapping[str, Any], report: Report) -> None:
    verdict = json.loads(json.dumps(as_json(report)["verdict"]))
    assert {key: verdict[key] for key in wanted} == wanted


def relabel(record: events.Event, ranks: Mapping[int, int]) -> events.Event:
    """Write a record as the same job would have written it with its ranks numbered otherwise."""
    changes: dict[str, Any] = {}
    for name in ("rank", "local_rank", "root", "peer"):
        if isinstance(getattr(record, name, None), int):
            changes[name] = ranks[getattr(record, name)]
    if isinstance(getattr(record, "ranks", None), list):
        changes["ranks"] = [ranks[rank] for rank in getattr(record, "ranks")]  # noqa: B009 - not on all records
    return msgspec.structs.replace(record, **changes) if changes else record


def test_every_scenario_of_the_demo_has_its_sample() -> None:
    assert set(SCENARIOS) <= set(NAMES)


@pytest.mark.parametrize("sample", NAMES)
def test_sample_gets_its_verdict(sample: str) -> None:
    report = analysed(SAMPLES / sample)

    assert_subset(expected(sample)["verdict"], report)


@pytest.mark.parametrize("sample", NAMES)
def test_order_of_the_files_changes_nothing(sample: str, tmp_path: Path) -> None:
    for log in sorted(SAMPLES.joinpath(sample).glob("rank*"), reverse=True):
        shutil.copy(log, tmp_path)

    shuffled = analysed(tmp_path)

    assert as_json(shuffled)["verdict"] == as_json(analysed(SAMPLES / sample))["verdict"]


@pytest.mark.parametrize("sample", NAMES)
def test_other_numbers_of_the_ranks_change_only_the_numbers(sample: str, tmp_path: Path) -> None:
    for rank, other in RELABELLED.items():
        for log in SAMPLES.joinpath(sample).glob(f"rank{rank:05}*"):
            target = tmp_path / log.name.replace(f"rank{rank:05}", f"rank{other:05}")
            lines = log.read_bytes().splitlines()
            if log.suffix == ".jsonl":
                target.write_bytes(b"".join(events.encode(relabel(events.decode(line), RELABELLED)) for line in lines))
            else:
                target.write_bytes(log.read_bytes())

    report = analysed(tmp_path)

    wanted = expected(sample)["verdict"]
    ranks = {key: sorted(RELABELLED[rank] for rank in wanted[key]) for key in ("culprits", "victims") if key in wanted}
    assert_subset({**wanted, **ranks}, report)


@pytest.mark.parametrize("sample", NAMES)
def test_sample_names_nothing_of_the_machine_that_recorded_it(sample: str) -> None:
    for log in SAMPLES.joinpath(sample).glob("rank*"):
        text = log.read_text()
        assert len(text) <= 60_000
        assert not any(name in text for name in ("/root/", "/home/", "/tmp/"))
