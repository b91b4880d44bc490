"""Pages of large runs: ``python -m tests.benchmarks.page_size [--ranks 64 1024] [--steps 200]``.

Writes a run with a slow rank, makes the page of it, and prints its size. Where there is a browser, it opens the page
without a window: how long from the request until the page answers, and until its first chart, brought into view, is
drawn. Targets: 64 ranks 8 MB and 2 s, 1,024 ranks 15 MB.
"""

import argparse
import http.server
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from urllib.parse import parse_qs, urlparse

from tests.benchmarks.performance_scale import Job, write

PATIENCE_SECONDS = 60.0
TARGETS_MB = {64: 8.0, 1024: 15.0}
PROBE = b"""<script>
addEventListener('load', function () {
  var ready = performance.now(), chart = document.querySelector('.chart');
  chart.scrollIntoView();
  (function look() {
    if (!chart.querySelector('.main-svg')) { return setTimeout(look, 5); }
    requestAnimationFrame(function () { setTimeout(function () {
      fetch('/drawn?ready=' + ready + '&drawn=' + performance.now());
    }, 0); });
  }());
});
</script>"""
"""Tells when the page has loaded, its scripts included, and when the chart is on the screen."""


def page_of(job: Job, directory: Path) -> Path:
    """Write a run and return the page of it."""
    logs, page = directory / "logs", directory / "page.html"
    write(job, logs)
    command = [sys.executable, "-m", "distdiag", "analyze", str(logs), "--format", "html", "--output", str(page)]
    code = subprocess.run(command, stderr=subprocess.DEVNULL).returncode
    shutil.rmtree(logs)
    if code not in (0, 1):
        raise SystemExit(f"distdiag analyze ended with {code}")
    return page


def opened(page: Path, browser: str) -> tuple[float, float] | None:
    """Return the milliseconds until the page answers and until a chart is drawn, None where that takes too long."""
    text = page.read_bytes().replace(b"</body>", PROBE + b"</body>")
    told: dict[str, float] = {}
    done = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlparse(self.path)
            self.send_response(200)
            self.end_headers()
            if asked.path == "/drawn":
                told.update({name: float(value[0]) for name, value in parse_qs(asked.query).items()})
                done.set()
            elif asked.path == "/page":
                self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, tempfile.TemporaryDirectory() as profile:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        command += ["--window-size=1200,900", f"http://127.0.0.1:{server.server_port}/page"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            done.wait(PATIENCE_SECONDS)
        finally:
            process.kill()
            process.wait()
            server.shutdown()
    return (told["ready"], told["drawn"]) if told else None


def main() -> None:
    """Write, open and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tries", type=int, default=3, help="openings of a page, of which the fastest counts")
    parser.add_argument("--browser", default=shutil.which("chromium") or shutil.which("google-chrome"))
    options = parser.parse_args()
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory(prefix="distdiag-page-") as name:
            page = page_of(Job(ranks=ranks, steps=options.steps), Path(name))
            tries = [opened(page, options.browser) for _ in range(options.tries)] if options.browser else []
            times = min((each for each in tries if each is not None), default=None)
            allowed = f" (target {TARGETS_MB[ranks]:g} MB)" if ranks in TARGETS_MB else ""
            told = f"answers after {times[0]:.0f} ms, chart drawn after {times[1]:.0f} ms" if times else "not opened"
            sys.stdout.write(f"{ranks} ranks, {page.stat().st_size / 1e6:.1f} MB{allowed}: {told}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
