#!/bin/sh
# Installs the programs whose files are read, into .cache/producers: packages of pip and npm, and as
# root on Debian and Ubuntu LibreOffice. What is not there is left out. With `peers`, only the readers
# that peers.py compares with are installed.
set -e
here=$(dirname "$0")
home=.cache/producers
mkdir -p "$home"
if [ "$1" = peers ]; then
	"${PYTHON:-python3}" -m venv --clear "$home/peers"
	"$home/peers/bin/pip" install --quiet --disable-pip-version-check -r "$here/peers.txt"
	exit
fi
if ! cmp -s "$here/requirements.txt" "$home/requirements.txt"; then
	"${PYTHON:-python3}" -m venv --clear "$home/venv"
	"$home/venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
	cp "$here/requirements.txt" "$home/requirements.txt"
fi
if command -v npm >/dev/null; then
	cp "$here/package.json" "$home/package.json"
	npm install --prefix "$home" --no-audit --no-fund --silent
fi
if ! command -v soffice >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	apt-get install -y -q --no-install-recommends libreoffice-writer-nogui libreoffice-math-nogui
fi
