"""Notices of alarms: one for an incident, one for its end, with what a script needs."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distdiag.commands._notices import PATIENCE_SECONDS, Notices
from distdiag.live.alarms import Alarm, Change, Condition, Kind

VERDICT = {"name": "rank-missing", "culprits": [2, 3]}
DUMP = "cat > {0}/$DISTDIAG_ALARM_EVENT.json; env | grep ^DISTDIAG_ALARM | sort > {0}/$DISTDIAG_ALARM_EVENT.env"


def alarm(*, verdict: bool = True, cleared: bool = False) -> Alarm:
    condition = Condition(kind=Kind.STALL, incident="halt", summary="no rank moves", ranks=(2, 3))
    return Alarm(
        number=1,
        condition=condition,
        raised_wall_ns=5_000_000_000,
        cleared_wall_ns=6_000_000_000 if cleared else None,
        verdict=VERDICT if verdict else None,
    )


def test_command_gets_facts_in_its_environment_and_json_on_its_input(tmp_path: Path) -> None:
    notices = Notices(logs="logs", command=DUMP.format(tmp_path))

    notices.take([Change("raised", alarm())], 0.0, explaining=True)
    notices.finish()

    told = json.loads((tmp_path / "raised.json").read_text())
    assert (told["schema"], told["event"], told["alarm"]["ranks"]) == ("distdiag.alarm/1", "raised", [2, 3])
    assert told["alarm"]["verdict"]["name"] == "rank-missing"
    variables = (tmp_path / "raised.env").read_text().splitlines()
    assert "DISTDIAG_ALARM=stall" in variables
    assert "DISTDIAG_ALARM_RANKS=2,3" in variables
    assert "DISTDIAG_ALARM_CULPRITS=2,3" in variables
    assert "DISTDIAG_ALARM_SUMMARY=no rank moves" in variables


def test_notice_waits_for_the_verdict_and_comes_once(tmp_path: Path) -> None:
    notices = Notices(logs="logs", command=f"echo $DISTDIAG_ALARM_VERDICT >> {tmp_path}/told")

    notices.take([Change("raised", alarm(verdict=False))], 0.0, explaining=True)
    notices.take([], 1.0, explaining=True)
    notices.take([Change("explained", alarm())], 2.0, explaining=True)
    notices.take([], PATIENCE_SECONDS + 1.0, explaining=True)
    notices.finish()

    assert (tmp_path / "told").read_text() == "rank-missing\n"


def test_notice_comes_without_a_verdict_when_none_is_to_be_had(tmp_path: Path) -> None:
    notices = Notices(logs="logs", command=f"echo $DISTDIAG_ALARM_EVENT >> {tmp_path}/told")

    notices.take([Change("raised", alarm(verdict=False))], 0.0, explaining=True)
    notices.take([], PATIENCE_SECONDS + 1.0, explaining=True)
    notices.finish()
    notices.take([Change("cleared", alarm(verdict=False, cleared=True))], 30.0, explaining=False)
    notices.finish()

    assert (tmp_path / "told").read_text() == "raised\ncleared\n"


def test_command_that_fails_is_said_and_harms_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    notices = Notices(logs="logs", command="echo no such host >&2; exit 3")

    notices.take([Change("raised", alarm())], 0.0, explaining=False)
    notices.finish()

    assert "ended with code 3 no such host" in capfd.readouterr().err


@contextmanager
def listening() -> Iterator[tuple[str, list[bytes]]]:
    """A web server that keeps what is posted to it."""
    bodies: list[bytes] = []

    class Keeper(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Keeper) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/alarms", bodies
        server.shutdown()
        thread.join()


def test_webhook_gets_the_alarm_as_json() -> None:
    with listening() as (address, bodies):
        notices = Notices(logs="logs", webhook=address)
        notices.take([Change("raised", alarm())], 0.0, explaining=False)
        notices.finish()

    (body,) = bodies
    assert json.loads(body)["alarm"]["kind"] == "stall"


def test_webhook_that_nobody_answers_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    notices = Notices(logs="logs", webhook="http://127.0.0.1:1/")

    notices.take([Change("raised", alarm())], 0.0, explaining=False)
    notices.finish()

    assert "webhook did not take the alarm" in capfd.readouterr().err
