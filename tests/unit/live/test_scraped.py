"""A job as a Prometheus server holds it; a small HTTP server answers in its place."""

import http.server
import json
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest

from distdiag.errors import DistdiagError
from distdiag.live.scraped import Scraped
from tests.ranks import free_port

RANKS = {
    "step": 7.0,
    "still_seconds": 0.5,
    "stall_limit_seconds": 60.0,
    "pulse_age_seconds": 1.0,
    "step_seconds": 0.25,
    "memory_bytes": 1024.0,
}


def series(name: str, value: float, **labels: str) -> dict[str, Any]:
    return {"metric": {"__name__": f"distdiag_{name}", **labels}, "value": [1_700_000_000.0, str(value)]}


def of_rank(rank: int, instance: str = "a:9464", **changes: float) -> list[dict[str, Any]]:
    labels = {"rank": str(rank), "host": f"node{rank // 2}", "instance": instance}
    return [series(name, value, **labels) for name, value in {**RANKS, **changes}.items()]


class Server:
    """Answers every query with the same series, and keeps what was asked."""

    def __init__(self) -> None:
        self.result: list[dict[str, Any]] = []
        self.body: bytes | None = None
        self.queries: list[str] = []
        self.address = ""


@pytest.fixture
def server() -> Iterator[Server]:
    answering = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answering.queries += urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)["query"]
            told = {"status": "success", "data": {"resultType": "vector", "result": answering.result}}
            body = json.dumps(told).encode() if answering.body is None else answering.body
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    http_server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http_server.serve_forever)
    thread.start()
    answering.address = f"http://127.0.0.1:{http_server.server_address[1]}"
    yield answering
    http_server.shutdown()
    http_server.server_close()
    thread.join()


def test_ranks_and_job_are_shown_as_the_server_holds_them(server: Server) -> None:
    server.result = [*of_rank(0), *of_rank(1, wait_caused_ratio=0.4), series("world_size", 3), series("job_step", 7)]
    scraped = Scraped(server.address, 'job="training"')

    changes = scraped.look(0.0)
    snapshot = scraped.snapshot()

    assert changes == []
    assert 'job="training"' in server.queries[0]
    assert (snapshot.health, snapshot.world_size, snapshot.missing, snapshot.step) == ("healthy", 3, (2,), 7)
    assert [(row.rank, row.host, row.state, row.step, row.memory_bytes) for row in snapshot.ranks] == [
        (0, "node0", "runs", 7, 1024),
        (1, "node0", "runs", 7, 1024),
    ]
    assert [row.caused for row in snapshot.ranks] == [None, 0.4]


def test_alarms_are_raised_with_their_ranks_and_cleared(server: Server) -> None:
    calm = [*of_rank(0), *of_rank(1), series("alarm", 0, kind="stall")]
    scraped = Scraped(server.address)
    server.result = [*calm[:-1], series("alarm", 1, kind="stall"), series("alarm_rank", 1, kind="stall", rank="1")]

    changes = scraped.look(0.0)
    server.result = calm
    changes += [*scraped.look(1.0), *scraped.look(60.0)]

    assert [(change.what, change.alarm.kind, change.alarm.condition.ranks) for change in changes] == [
        ("raised", "stall", (1,)),
        ("cleared", "stall", (1,)),
    ]


def test_of_two_sources_that_know_a_rank_the_fresher_is_taken(server: Server) -> None:
    server.result = [
        *of_rank(0, "old:9464", step=3.0, pulse_age_seconds=90.0),
        *of_rank(0, "new:9464", step=9.0),
        series("tokens_per_second", 100, instance="old:9464"),
        series("tokens_per_second", 100, instance="new:9464"),
        series("world_size", 1),
    ]
    scraped = Scraped(server.address)

    scraped.look(0.0)
    snapshot = scraped.snapshot()

    assert [(row.step, row.state) for row in snapshot.ranks] == [(9, "runs")]
    assert snapshot.tokens_per_second == 100


def test_sources_that_see_one_host_each_are_added_up(server: Server) -> None:
    server.result = [
        *of_rank(0, "a:9464"),
        *of_rank(1, "b:9464"),
        *(series("tokens_per_second", 100, instance=f"{host}:9464") for host in "ab"),
        series("world_size", 2),
    ]
    scraped = Scraped(server.address)

    scraped.look(0.0)

    assert scraped.snapshot().tokens_per_second == 200


def test_server_without_such_metrics_is_said_to_have_none(server: Server) -> None:
    scraped = Scraped(server.address)

    scraped.look(0.0)

    assert scraped.snapshot().health == f"{server.address} holds no metrics of distdiag that match"


@pytest.mark.parametrize("body", [b"<html>no api</html>", b'{"status":"error","error":"bad query"}', b"[]", b"{}"])
def test_answer_that_is_none_is_an_error_at_first_and_a_note_later(server: Server, body: bytes) -> None:
    scraped = Scraped(server.address)
    server.body = body
    with pytest.raises(DistdiagError, match="no answer from"):
        scraped.look(0.0)

    server.body, server.result = None, of_rank(0)
    scraped.look(1.0)
    server.body = body

    assert scraped.look(2.0) == []
    assert scraped.snapshot().notes[0].startswith(f"no answer from {server.address}")
    assert [row.rank for row in scraped.snapshot().ranks] == [0]


@pytest.mark.parametrize("address", ["http://127.0.0.1:{port}", "file:///etc", "nonsense"])
def test_address_at_which_nobody_answers_is_an_error_with_a_hint(address: str) -> None:
    with pytest.raises(DistdiagError) as raised:
        Scraped(address.format(port=free_port())).look(0.0)

    assert raised.value.hint == "give the address of a Prometheus server"
