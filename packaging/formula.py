"""Writes the Homebrew formula of a built wheel, with a wheel of the lock for every package.

    python packaging/formula.py dist/specchat-VERSION-py3-none-any.whl --release URL > specchat.rb

URL is the folder in which the release's files lie; the formula goes into a tap's Formula/ folder.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import lock
import wheels

PLACE = "https://files.pythonhosted.org/packages"
"""The public registry's folder of files, which are named by BLAKE2b digests."""

RELEASES = {14: "on_sonoma", 15: "on_sequoia", 26: "on_tahoe"}

HEAD = """\
# Written by packaging/formula.py from requirements.lock: change that, not this.
class Specchat < Formula
  include Language::Python::Virtualenv

  desc "Chat in the terminal with local models about long documents"
  homepage "{homepage}"
  url "{release}/{file}", using: :nounzip
  version "{version}"
  sha256 "{sha256}"
  license "MIT"

  depends_on arch: :arm64
  depends_on macos: :sonoma
  depends_on "python@{python}"

  # Libraries in wheels have no room for the longer names that Homebrew would give them.
  preserve_rpath
"""

TAIL = """\
  def install
    python = Formula["python@{python}"].opt_bin/"python{python}"
    virtualenv_create(libexec, python)
    pip = [python, "-m", "pip", "--python=#{{libexec}}/bin/python"]
    offline = %w[--no-index --no-deps]
    resources.each do |package|
      package.stage {{ system(*pip, "install", *offline, *Dir["*.whl"]) }}
    end
    system(*pip, "install", *offline, *Dir["*.whl"])

    bin.install_symlink libexec/"bin/specchat"
    man1.install_symlink libexec/"share/man/man1/specchat.1"
    bash_completion.install_symlink libexec/"share/bash-completion/completions/specchat"
    zsh_completion.install_symlink libexec/"share/zsh/site-functions/_specchat"
    fish_completion.install_symlink libexec/"share/fish/vendor_completions.d/specchat.fish"
  end

  def caveats
    <<~EOS
      `specchat install-launcher` puts specchat among your applications.
    EOS
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/specchat --version")
    assert_match "keep", shell_output("#{{bin}}/specchat settings")
  end
end
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the Homebrew formula of a built wheel.")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--release", required=True, help="the URL below which the wheel lies")
    parser.add_argument(
        "--homepage", help="homepage of the project (default: derived from the release)"
    )
    options = parser.parse_args()
    release = options.release.rstrip("/")
    homepage = options.homepage or release.partition("/releases/")[0]
    sys.stdout.write(formula(options.wheel, release, homepage))
    return 0


def formula(wheel: Path, release: str, homepage: str) -> str:
    packages: list[dict[str, Any]] = json.loads(wheels.FILE.read_text(encoding="utf-8"))
    own = {
        "release": release,
        "homepage": homepage,
        "file": wheel.name,
        "version": wheel.name.split("-")[1],
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "python": lock.PYTHON,
    }
    parts = [HEAD.format_map(own), *(_resource(each) for each in packages), TAIL.format_map(own)]
    return "\n".join(parts)


def _resource(package: dict[str, Any]) -> str:
    files = package["files"]
    lines = [f'  resource "{package["name"]}" do']
    if len(files) == 1:
        lines += _source(files[0], "    ")
    else:
        for each in files:
            newest = " :or_newer" if each is files[-1] else ""
            lines += [
                f"    {RELEASES[each['macos']]}{newest} do",
                *_source(each, "      "),
                "    end",
            ]
    return "\n".join([*lines, "  end\n"])


def _source(file: dict[str, Any], indent: str) -> list[str]:
    return [
        f'{indent}url "{url(file)}", using: :nounzip',
        f'{indent}sha256 "{file["sha256"]}"',
    ]


def url(file: dict[str, Any]) -> str:
    digest = file["blake2b"]
    return f"{PLACE}/{digest[:2]}/{digest[2:4]}/{digest[4:]}/{file['file']}"


if __name__ == "__main__":
    sys.exit(main())
