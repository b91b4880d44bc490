"""Serves the metrics of a watched job to whoever scrapes them."""

import http.server
import threading
from typing import Any

from distdiag.errors import DistdiagError
from distdiag.live.snapshot import Snapshot
from distdiag.reporters.prometheus import CONTENT_TYPE, render

LOOPBACK = "127.0.0.1"


class Metrics:
    """An HTTP server with one page, ``/metrics``, that shows the newest snapshot.

    ``address`` is a port of the loopback, or ``host:port``. Raises ``DistdiagError`` where it cannot be had.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.snapshot: Snapshot | None = None
        try:
            self._server = http.server.ThreadingHTTPServer((host or LOOPBACK, int(port)), self._handler())
        except (OSError, ValueError, OverflowError) as error:
            raise DistdiagError(
                f"cannot serve metrics at {address}: {error}", "give a free port, as in 9464"
            ) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="distdiag-metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Return the port that is served."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Serve no longer."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _page(self) -> bytes:
        return render(self.snapshot).encode() if self.snapshot is not None else b""

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        page = self._page

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.path.partition("?")[0] in ("/metrics", "/")
                body = page() if known else b"the metrics are at /metrics\n"
                self.send_response(200 if known else 404)
                self.send_header("Content-Type", CONTENT_TYPE if known else "text/plain")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Leave the terminal to the view."""

        return Handler
