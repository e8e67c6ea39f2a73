"""The settings describe themselves, and each has an effect."""

from __future__ import annotations

import pytest

from app.ingest.limits import ReadLimits
from app.protocol.options import EMBEDDED, MODELS_OWN
from app.settings.definitions import (
    Setting,
    Settings,
    Value,
    all_settings,
    find,
    format_value,
    search,
)
from tests.tables import table

ELSEWHERE = {
    *("reading.mode", "reading.keep", "reading.first_word_within_s", "reading.kv_bits"),
    *("storage.trash_days", "storage.save_requests", "appearance.theme", "appearance.animations"),
    *("models.target", "models.draft", "models.folders", "answers.request_max_tokens"),
}
"""Those that the screen, the store, the engine or a command takes as they are; their tests are
there."""


def other(setting: Setting) -> Value:
    """A value that is not the default."""
    if setting.type is str:
        return "mlx-community/Another"
    if setting.range is None:
        return next(choice for choice in setting.choices if choice != setting.default)
    ends = (setting.range.min, setting.range.max)
    return next(setting.type(end) for end in ends if end != setting.default)  # type: ignore[arg-type]


@table("setting", all_settings())
def test_each_has_a_description_a_default_it_allows_and_an_effect(setting: Setting) -> None:
    assert setting.doc.endswith(".")
    assert "[" not in setting.doc
    assert setting.validate(setting.default) == setting.default
    assert setting.value_in(Settings()) == setting.default
    changed = setting.with_value(Settings(), other(setting))
    assert setting.value_in(changed) != setting.default

    def effects(settings: Settings) -> tuple[object, ...]:
        upkeep = settings.cache_policy("folder")
        return settings.sampling(), settings.limits(), settings.attachment_bytes, upkeep

    assert (effects(changed) != effects(Settings())) == (setting.key not in ELSEWHERE)


@table(
    "key, value",
    [
        ("reading.keep", -0.01),
        ("reading.keep", 1.01),
        ("reading.keep", float("nan")),
        ("reading.keep", "0.2"),
        ("reading.keep", True),
        ("reading.mode", "fast"),
        ("reading.mode", 1),
        ("appearance.animations", 1),
        ("appearance.animations", "true"),
        ("answers.max_tokens", 10**400),
        ("answers.max_tokens", 12.5),
        ("storage.trash_days", [30]),
    ],
)
def test_invalid_values_are_refused(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"from|one of"):
        find(key).validate(value)


def test_the_words_of_the_screens_are_values() -> None:
    for setting in all_settings():
        for word, value in setting.words.items():
            assert setting.display(value) == word
            assert setting.validate(word) == setting.validate(word.upper()) == value
        for choice in setting.choices:
            assert setting.validate(setting.display(choice)) == choice
    assert find("reading.keep").validate("Auto") == 0
    assert find("answers.temperature").validate("the model's own") == MODELS_OWN
    assert find("answers.thinking").validate("off") is False
    assert find("models.target").validate("demo model") == EMBEDDED
    assert find("reading.kv_bits").validate(8) == "8"
    with pytest.raises(ValueError, match="from 0 to 1, or 'auto'"):
        find("reading.keep").validate("all")


def test_a_whole_number_is_a_number() -> None:
    keep = find("reading.keep").validate(1)
    assert (keep, type(keep)) == (1.0, float)


def test_limits_are_those_of_files_and_folders_unless_they_are_set() -> None:
    assert Settings().limits() == ReadLimits()
    smaller = find("documents.max_file_size_mb").with_value(Settings(), 1)
    assert smaller.limits(private=True) == ReadLimits(file_bytes=2**20, include_private=True)


def test_they_are_found_by_words_of_name_and_description() -> None:
    assert [setting.key for setting in search("colours")] == ["appearance.theme"]
    assert find("documents.max_pdf_size_mb") in search("PDF maximum")
    assert search("nonsense") == ()
    assert search("") == all_settings()


def test_values_are_written_without_noise() -> None:
    assert [format_value(value) for value in (0.1 + 0.2, 1.0, 12, True)] == [
        "0.3",
        "1",
        "12",
        "true",
    ]
