"""Fetches the documents that `python -m benchmarks quality --suite dev` asks about, on Debian.

Scorers and parameters may be chosen on them. They come out of Debian's packages (the Debian FAQ in
six languages, GPL-2+; the country codes of iso-codes, LGPL-2.1+; PostgreSQL's sample configuration,
PostgreSQL licence; the media types, public domain) and of Python packages (httpx and Pint's units,
BSD; Bokeh's table of cars, CC0-1.0).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.real.held_out import (
    BOKEH,
    debian_package,
    fetch_texts,
    gunzipped,
    member_of_wheel,
    read_member,
    source_of_wheel,
)
from tests.real.packages import Package

DOCUMENTS = {
    "auto-mpg.csv": "7de0ecb3489c54523818af3daa65115dd87cc3737ad007b93ec31a74536787a7",
    "faq-de.txt": "8f96eda91c6ed369eec280db29b41edc67513dbad06161812bbecbb471e8ec1f",
    "faq-en.txt": "f687d96695d667f428edb40476d0b73efc611689e030d3a0828bb76f31dc81f6",
    "faq-fr.txt": "2c194bb3717d6917468352d9d60c1febcef3c90d35f88571efd796b4e25ee7e8",
    "faq-ja.txt": "b371e45b51f0fe751c4c483102543f623f5c540e796321668c6b7289bbdb36e6",
    "faq-ru.txt": "71077efb77e4244b98dd9492450907aa7fc847b1bf70ae6f4826f09c536516cc",
    "faq-zh.txt": "4a0b20e0c644c37a94e7fdb385bd834dff12ea70cb0cfd928a05435219f07341",
    "httpx.py": "2d5f1bc1f5e4a582dec0b220e2e3cfc4c6812dfa02dfd907caac838ab2dc9867",
    "iso_3166-1.json": "f01b812b57fba9f31ff621bf33e7c7570a01964dbeb5be2167e94decf538c89f",
    "mime-types.txt": "c78c959dda2bea01af7f1ceab76e50a540dc168459b4d3d9df547f7a24cc386f",
    "pint-units.txt": "30292f8ce4601936a690747807aca876404b79852dfdd5ba5cfba414fe5602ae",
    "postgresql.conf": "359bded62150d87861a0c5afe10d3a72a81fb477df751d85091455d444b2d80d",
}
HTTPX = Package(
    "httpx", "0.28.1", "d909fcccc110f8c7faf814ca82a9a4d816bc5a6dbfea25d6591d6985b8ba59ad"
)
PINT = Package("pint", "0.25.3", "27eb25143bd5de9fcc4d5a4b484f16faf6b4615aa93ece6b3373a8c1a3c1b97d")
FAQ = {"en": "", "de": "-de", "fr": "-fr", "ru": "-ru", "ja": "-ja", "zh-cn": "-zh-cn"}
"""By language: the end of the package's name."""


def fetch_tuning_texts(folder: Path) -> None:
    """Write those that are missing into a folder. ModelError."""
    fetch_texts(folder, DOCUMENTS, _texts)


def _texts() -> Iterator[tuple[str, str]]:
    yield "httpx.py", source_of_wheel(HTTPX)
    yield "pint-units.txt", member_of_wheel(PINT, "pint/default_en.txt")
    yield "auto-mpg.csv", member_of_wheel(BOKEH, "bokeh_sampledata/_data/auto-mpg.csv")
    for language, suffix in FAQ.items():
        with debian_package(f"debian-faq{suffix}") as files:
            member = f"usr/share/doc/debian/FAQ/debian-faq.{language}.txt.gz"
            yield f"faq-{language[:2]}.txt", gunzipped(files, member)
    with debian_package("iso-codes") as files:
        countries = read_member(files, "usr/share/iso-codes/json/iso_3166-1.json")
        yield "iso_3166-1.json", countries.decode()
    with debian_package("media-types") as files:
        yield "mime-types.txt", read_member(files, "etc/mime.types").decode()
    with debian_package("postgresql-15") as files:
        sample = "usr/share/postgresql/15/postgresql.conf.sample"
        yield "postgresql.conf", read_member(files, sample).decode()
