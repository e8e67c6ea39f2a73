#!/usr/bin/env bash
# Question: What does snapshot_download(local_files_only=True) do when only config.json of a
#   model was ever fetched?
# One would guess: it raises: the model is not there. Other calls of the library raise
#   LocalEntryNotFoundError in that case.
# What happens: it returns the folder, as if all were well, even when asked for '*.safetensors'
#   alone and not one such file is there. Offline it cannot know the list of files, and it does
#   not say so.
# Versions: huggingface-hub 2.4.0; Python 3.11
# Why it matters: an interrupted download, or one hf_hub_download() of the config, makes 'is
#   this model installed?' answer yes.
# Output seen (28 November 2026):
#   huggingface-hub 2.4.0
#   hf_hub_download model.safetensors, offline: raises LocalEntryNotFoundError
#   snapshot_download, offline: returns a folder with ['config.json']
#   snapshot_download *.safetensors, offline: returns a folder with ['config.json']
set -euo pipefail

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install -q --disable-pip-version-check --no-compile \
    'huggingface-hub==2.4.0'

cd "$tmp"
"$tmp/venv/bin/python" - <<'PY'
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

BODY, COMMIT = b'{"model_type": "llama"}', "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """Serves one file, as the hub does."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.send_header("ETag", '"abc"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(BODY)

    do_HEAD = do_GET

    def log_message(self, *args):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ.update(HF_ENDPOINT=f"http://127.0.0.1:{server.server_port}", HF_HOME="home", NO_PROXY="127.0.0.1")
os.environ.update(HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_DISABLE_TELEMETRY="1")
from huggingface_hub import hf_hub_download, snapshot_download  # reads the variables

print("huggingface-hub", version("huggingface-hub"))
hf_hub_download("org/model", "config.json")
server.shutdown()

seen = {}
for what, call in {
    "hf_hub_download model.safetensors": lambda: hf_hub_download(
        "org/model", "model.safetensors", local_files_only=True
    ),
    "snapshot_download": lambda: snapshot_download("org/model", local_files_only=True),
    "snapshot_download *.safetensors": lambda: snapshot_download(
        "org/model", local_files_only=True, allow_patterns=["*.safetensors"]
    ),
}.items():
    try:
        path = call()
        seen[what] = f"returns a folder with {os.listdir(path)}"
    except Exception as error:
        seen[what] = f"raises {type(error).__name__}"
    print(f"{what}, offline: {seen[what]}")
if [text.split()[0] for text in seen.values()] != ["raises", "returns", "returns"]:
    raise SystemExit("Changed: snapshot_download() without a network checks what is there now.")
PY
