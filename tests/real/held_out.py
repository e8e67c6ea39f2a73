"""Fetches the documents that `python -m benchmarks quality --suite passages` asks about, on Debian.

Nothing was chosen on them: no scorer, no parameter. They come out of Debian's packages (the Debian
Administrator's Handbook in eight languages, GPL-2+ or CC-BY-SA 3.0; Debian's policy, GPL-2+; the
Jargon File, public domain; two licences) and of two Python packages (BSD). The log is our own.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path

from app.models.errors import ModelError
from tests.real.packages import Package, fetch_wheel
from tests.real.server_log import server_log

DOCUMENTS = {
    "flask.py": "31b801b86f7677534d1e9c9849ad0b9c49308694345f0dca6b03b27707419530",
    "gfdl-1.3.txt": "110535522396708cea37c72a802c5e7e81391139f5f7985631c93ef242b206a4",
    "handbook-ar.txt": "642f860f83a15c41cf6e6bb93013e377fef43ea881ba3401197dd45be156bee8",
    "handbook-de.txt": "af32f1d12f0200ad8964ff46a2fa2c436e1fcef6e82762a40a32ce6917e78e1a",
    "handbook-en.txt": "8a232022e326dcf5c7020c1743363221048014bae3ddcf65d549f4285c92cbc0",
    "handbook-es.txt": "42197163223d699dc1d97374ee59d3b54a90d2a0176bb832b5e87519d22df3ca",
    "handbook-fr.txt": "33c98812c4a5718d7ce9d3d5f4b42fe4dad8c0637c1faabf306b0ae28315e527",
    "handbook-ja.txt": "a366cd620748bfd6dafc460889c3cac1c8cc116ac485be260a44d8842290b64b",
    "handbook-ru.txt": "19db2688e6f27d75b33bd1fc3950c26e3863fcd8413abc2f1da087f969c24fbb",
    "handbook-zh.txt": "81ae98526eefb74146e83a2a0432cd8621184d0fbf94967de90650ce74a56cf5",
    "jargon.txt": "40dfb4b98191a670a09a183d5798d50f243d23fdbd1495dcc0aca2ce5895ba97",
    "mpl-2.0.txt": "fab3dd6bdab226f1c08630b1dd917e11fcb4ec5e1e020e2c16f83a0a13863e85",
    "policy.txt": "89dba06600463ed858b4ccd3bdf4e72452c512589f1029548346e5284eb71374",
    "server.log": "0263ce83f018b809d571767ff103284ee90f663fe266e0a16442b2c9d8230c16",
    "werkzeug.py": "f2ce5b78daaf27721539f8bb02109da4750b67b19912ed79d54ad0ea4271a1d6",
}
"""Their SHA-256: another version may not have the passages."""
FLASK = Package(
    "flask", "3.1.2", "ca1d8112ec8a6158cc29ea4858963350011b5c846a414cdb7a954aa9e967d03c"
)
WERKZEUG = Package(
    "werkzeug", "3.1.3", "54b78bf3716d19a65be4fceccc0d1d7b89e608834989dfae50ea87564639213e"
)
HANDBOOK = "usr/share/doc/debian-handbook/html"
LANGUAGES = ("en-US", "de-DE", "fr-FR", "es-ES", "ru-RU", "zh-CN", "ja-JP", "ar-MA")
BLOCKS = {*["p", "h1", "h2", "h3", "h4", "h5", "li", "dt", "dd", "pre", "div", "tr", "table"]}
HIDDEN = {*["script", "style", "head", "nav"]}
NAVIGATION = re.compile(
    r'<ul class="docnav.*?</ul>|<p id="title">.*?</p>|<a[^>]*>Download the ebook</a>'
    r"|Download the ebook",
    re.DOTALL,
)


def fetch_held_out(folder: Path) -> None:
    """Write those that are missing into a folder. ModelError."""
    if all(_is_right(folder / name) for name in DOCUMENTS):
        return
    for name, text in _texts():
        (folder / name).write_text(text, encoding="utf-8")
        if not _is_right(folder / name):
            raise ModelError(
                f"The document {name!r} is another version than the one that is asked about",
                "leave the suites that ask about it out",
            )


def _is_right(path: Path) -> bool:
    if not path.is_file():
        return False
    return hashlib.sha256(path.read_bytes()).hexdigest() == DOCUMENTS[path.name]


def _texts() -> Iterator[tuple[str, str]]:
    for name, package in (("flask.py", FLASK), ("werkzeug.py", WERKZEUG)):
        yield name, _source(fetch_wheel(package))
    yield "server.log", server_log()
    with _debian_package("base-files") as files:
        for name, member in (("mpl-2.0.txt", "MPL-2.0"), ("gfdl-1.3.txt", "GFDL-1.3")):
            yield name, _read(files, f"usr/share/common-licenses/{member}").decode()
    with _debian_package("jargon-text") as files:
        yield "jargon.txt", _gunzipped(files, "usr/share/doc/jargon-text/jargon.txt.gz")
    with _debian_package("debian-policy") as files:
        yield "policy.txt", _gunzipped(files, "usr/share/doc/debian-policy/policy.txt.gz")
    with _debian_package("debian-handbook") as files:
        for language in LANGUAGES:
            yield f"handbook-{language[:2]}.txt", _handbook(files, language)


def _source(wheel: Path) -> str:
    """All modules of a package, one after the other."""
    with zipfile.ZipFile(wheel) as members:
        names = sorted(name for name in members.namelist() if name.endswith(".py"))
        return "\n".join(f"# {name}\n{members.read(name).decode()}" for name in names)


@contextmanager
def _debian_package(name: str) -> Iterator[tarfile.TarFile]:
    """The files of a package of this machine's distribution. ModelError."""
    if not all(map(shutil.which, ("apt-get", "dpkg-deb"))):
        raise ModelError(
            f"The package {name!r} is fetched with apt-get, which this machine lacks",
            "run it on Debian",
        )
    with tempfile.TemporaryDirectory() as folder:
        fetched = subprocess.run(
            ["apt-get", "download", "-q", name], cwd=folder, capture_output=True, check=False
        )
        if fetched.returncode:
            raise ModelError(
                f"The package {name!r} could not be fetched", "run `apt-get update`, and try again"
            )
        (package,) = Path(folder).glob("*.deb")
        content = subprocess.run(
            ["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True
        ).stdout
    with tarfile.open(fileobj=io.BytesIO(content)) as files:
        yield files


def _read(files: tarfile.TarFile, name: str) -> bytes:
    member = files.extractfile(f"./{name}")
    assert member is not None
    return member.read()


def _gunzipped(files: tarfile.TarFile, name: str) -> str:
    return gzip.decompress(_read(files, name)).decode()


def _handbook(files: tarfile.TarFile, language: str) -> str:
    """All sections, in their order in the contents."""
    folder = f"{HANDBOOK}/{language}"
    contents = _read(files, f"{folder}/index.html").decode()
    names = dict.fromkeys(re.findall(r'href="(sect\.[\w.-]+\.html)"', contents))
    pages = (_read(files, f"{folder}/{name}").decode() for name in names)
    return "\n".join(plain_text(NAVIGATION.sub("", page)) for page in pages)


def plain_text(page: str) -> str:
    parser = _Text()
    parser.feed(page)
    return re.sub(r"\n\s*\n\s*", "\n\n", "".join(parser.parts)).strip() + "\n"


class _Text(HTMLParser):
    """The text of a page; its blocks are paragraphs."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._hidden = self._verbatim = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._hidden += tag in HIDDEN
        self._verbatim += tag == "pre"
        self.parts += ["\n\n"] * (tag in BLOCKS)

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in HIDDEN
        self._verbatim -= tag == "pre"
        self.parts += ["\n\n"] * (tag in BLOCKS)

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data if self._verbatim else re.sub(r"\s+", " ", data))
