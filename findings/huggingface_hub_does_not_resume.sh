#!/usr/bin/env bash
# Question: What does hf_hub_download() ask for when a download was interrupted and is started
#   again?
# One would guess: the missing bytes, by a Range header. The cache has a *.incomplete file, and
#   the library resumed downloads for years.
# What happens: since 1.18 it asks for the whole file (1.17 asked for the rest). Each call writes
#   to a file with a name of its own, which is deleted after an error, and which a killed process
#   leaves for good: nothing uses it or removes it later.
# Versions: huggingface-hub 1.17.0 and 2.4.0; Python 3.11
# Why it matters: a download of many gigabytes over a line that fails now and then may never
#   end, and parts of killed downloads fill the disk.
# Output seen (29 November 2026):
#   huggingface-hub 1.17.0: started again with Range bytes=N-, parts left: 0
#   huggingface-hub 2.4.0: started again with Range None, parts left: 1
set -euo pipefail

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
for version in 1.17.0 2.4.0; do
    python3 -m venv "$version"
    "$version/bin/pip" install -q --disable-pip-version-check --no-compile \
        "huggingface-hub==$version"
    "$version/bin/python" - <<'PY'
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

SIZE, COMMIT, ETAG = 40_000_000, "0123456789abcdef0123456789abcdef01234567", "ab" * 32
ranges, slow = [], [True]


class Hub(BaseHTTPRequestHandler):
    """Serves one file, as the hub does; slowly while `slow`."""

    def do_HEAD(self):
        self.answer(range(SIZE), 200)

    def do_GET(self):
        asked = self.headers.get("Range")
        ranges.append(asked)
        start = int(asked.removeprefix("bytes=").split("-")[0]) if asked else 0
        self.answer(range(start, SIZE), 206 if asked else 200)
        with suppress(OSError):  # the client was killed
            for at in range(start, SIZE, 1_000_000):
                self.wfile.write(b"x" * min(1_000_000, SIZE - at))
                time.sleep(0.1 if slow[0] else 0)

    def answer(self, part, status):
        self.send_response(status)
        self.send_header("Content-Length", str(len(part)))
        if status == 206:
            self.send_header("Content-Range", f"bytes {part.start}-{SIZE - 1}/{SIZE}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{ETAG}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()

    def log_message(self, *args):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
threading.Thread(target=server.serve_forever, daemon=True).start()
home = Path("home-" + version("huggingface-hub"))
os.environ.update(HF_ENDPOINT=f"http://127.0.0.1:{server.server_port}", HF_HOME=str(home))
os.environ.update(NO_PROXY="127.0.0.1", HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_DISABLE_XET="1")
os.environ.update(HF_HUB_DISABLE_TELEMETRY="1")
download = "import huggingface_hub as h; h.hf_hub_download('org/model', 'model.safetensors')"
command = [sys.executable, "-c", download]


def parts():
    return [each for each in home.rglob("*.incomplete") if each.stat().st_size]


process = subprocess.Popen(command)
while not parts():
    time.sleep(0.05)
process.send_signal(signal.SIGKILL)
process.wait()
slow[0] = False
ranges.clear()
subprocess.run(command, check=True)
seen = f"started again with Range {ranges[0] and 'bytes=N-'}, parts left: {len(parts())}"
print(f"huggingface-hub {version('huggingface-hub')}: {seen}")
expected = {
    "1.17.0": "started again with Range bytes=N-, parts left: 0",
    "2.4.0": "started again with Range None, parts left: 1",
}
if seen != expected[version("huggingface-hub")]:
    raise SystemExit("Changed: an interrupted download is continued otherwise.")
PY
done
