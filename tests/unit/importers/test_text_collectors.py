"""Output as collectors of logs pass it on: what they wrap lines in is taken off, and tells moment and source."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from distdiag.analyzers import diagnose
from distdiag.importers import load
from tests import training_output as out

LOSS = ("/workspace/train.py", 88, "train_step")
Entry = tuple[int, str]
"""Number of the pod, and what it printed."""
MOMENT = "2025-12-06T18:{minute:02}:00.{number:03}Z"
UNIX_SECONDS = 1_765_046_400


def entries() -> list[Entry]:
    """Return what four processes print that never name their rank: 2 ran out of memory, the others waited for it."""
    oom = [(2, line) for line in out.traceback(out.out_of_memory(0), LOSS)]
    return [*oom, *((rank, out.old_watchdog(0)) for rank in (0, 1, 3))]


def moments(said: Sequence[Entry]) -> list[str]:
    return [MOMENT.format(minute=0 if rank == 2 else 40, number=number) for number, (rank, _) in enumerate(said)]


def seconds(said: Sequence[Entry]) -> list[float]:
    return [UNIX_SECONDS + (0 if rank == 2 else 2400) + number / 1000 for number, (rank, _) in enumerate(said)]


def docker(said: Sequence[Entry]) -> str:
    records = [
        {"log": f"{text}\n", "stream": "stderr", "time": moment, "attrs": {}, "container_name": f"train-{rank}"}
        for (rank, text), moment in zip(said, moments(said), strict=True)
    ]
    return out.text(map(json.dumps, records))


def fluentd(said: Sequence[Entry]) -> str:
    records = [
        {"@timestamp": moment, "message": text, "kubernetes": {"pod_name": f"train-{rank}", "labels": {"app": "t"}}}
        for (rank, text), moment in zip(said, moments(said), strict=True)
    ]
    return out.text(map(json.dumps, records))


def loki(said: Sequence[Entry]) -> str:
    values: dict[int, list[list[str]]] = {}
    for (rank, text), moment in zip(said, seconds(said), strict=True):
        values.setdefault(rank, []).append([str(round(moment * 1e9)), text])
    streams = [{"stream": {"pod": f"train-{rank}"}, "values": lines} for rank, lines in values.items()]
    return json.dumps({"status": "success", "data": {"resultType": "streams", "result": streams}})


def cloudwatch(said: Sequence[Entry]) -> str:
    events = [
        {"logStreamName": f"train-{rank}", "timestamp": round(moment * 1e3), "message": text}
        for (rank, text), moment in zip(said, seconds(said), strict=True)
    ]
    return json.dumps({"events": events, "nextToken": "x"}, indent=2)


def google(said: Sequence[Entry]) -> str:
    records = [
        {"textPayload": text, "timestamp": moment, "labels": {"k8s-pod/pod-name": f"train-{rank}"}}
        for (rank, text), moment in zip(said, moments(said), strict=True)
    ]
    return json.dumps(records)


def elastic(said: Sequence[Entry]) -> str:
    hits = [
        {"_id": str(rank), "_source": {"message": text, "@timestamp": moment, "host": f"train-{rank}"}}
        for (rank, text), moment in zip(said, moments(said), strict=True)
    ]
    return json.dumps({"took": 3, "hits": {"total": len(hits), "hits": hits}})


def table(said: Sequence[Entry]) -> str:
    written = io.StringIO()
    rows = csv.writer(written)
    rows.writerow(("timestamp", "pod", "message"))
    rows.writerows((moment, f"train-{rank}", text) for (rank, text), moment in zip(said, moments(said), strict=True))
    return written.getvalue()


def kubectl(said: Sequence[Entry]) -> str:
    return out.text(
        f"[pod/train-{rank}/pytorch] {moment} {text}" for (rank, text), moment in zip(said, moments(said), strict=True)
    )


def tailed(said: Sequence[Entry]) -> str:
    return out.text(f"{moment} train-{rank} {text}" for (rank, text), moment in zip(said, moments(said), strict=True))


FORMS: dict[str, Callable[[Sequence[Entry]], str]] = {
    "docker.log": docker,
    "fluentd.json": fluentd,
    "logcli.jsonl": fluentd,
    "loki.json": loki,
    "events.json": cloudwatch,
    "downloaded-logs.json": google,
    "elastic.json": elastic,
    "export.csv": table,
    "pods.log": kubectl,
    "tail.log": tailed,
}


@pytest.mark.parametrize("name", FORMS)
def test_what_collectors_wrap_is_read(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(FORMS[name](entries()))

    verdict = diagnose(load(tmp_path)).verdict

    assert (verdict.name, verdict.culprits, verdict.site) == ("out-of-memory", (2,), "/workspace/train.py:88")
    assert verdict.victims == (0, 1, 3)


def test_moments_of_collectors_are_kept(tmp_path: Path) -> None:
    (tmp_path / "loki.json").write_text(loki(entries()))

    faults = load(tmp_path).faults

    assert abs(int(faults["time_ns"].min()) - UNIX_SECONDS * 10**9) < 10**9


def test_the_error_file_of_a_rank_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "none_ab" / "attempt_0" / "3"
    folder.mkdir(parents=True)
    told = {"message": {"message": "ValueError: bad sample", "extraInfo": {"py_callstack": "Traceback"}}}
    (folder / "error.json").write_text(json.dumps(told))
    (folder.parent / "0").mkdir()
    (folder.parent / "0" / "stderr.log").write_text(out.text(out.watchdog(0, 7)))

    faults = load(tmp_path).faults

    assert faults[faults["type"] == "ValueError"]["rank"].tolist() == [3]


@pytest.mark.parametrize(
    "content",
    [
        '{"message": "all is well", "time": "2025-12-06T18:40:00Z"}\n',
        '{"events": [{"message": "step 7"}]}',
        '{"log_history": [{"loss": 1.5}], "log": 3}',
        '{"events": [{"message": "Traceback (most recent call last):"',
        "timestamp,message\n1,step 7\n",
    ],
)
def test_records_without_a_failure_are_no_output_that_failed(content: str, tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.log").write_text(out.text(out.watchdog(rank, 7)))
    alone = load(tmp_path)
    (tmp_path / "other.json").write_text(content)

    beside = load(tmp_path)

    assert (beside.ranks, len(beside.faults)) == (alone.ranks, len(alone.faults))
