"""Keys and values of earlier versions are read, and rewritten at the next change."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from app.protocol.options import BackgroundPolicy
from app.settings.definitions import RENAMED, RENAMED_VALUES, ThemeName
from app.settings.file import SettingsFile
from app.settings.introspection import Setting, Value, all_settings, find
from app.settings.renamed import rewritten

STORED = Path(__file__).parent / "before_renames.toml"
"""As the version before the renames wrote it, with a value for every key that was renamed."""
KEEP, BACKGROUND = find("reading.keep"), find("reading.background_reading")
THEME = find("appearance.theme")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "settings.toml"
    path.write_bytes(STORED.read_bytes())
    return path


def change(path: Path, setting: Setting, value: Value) -> str:
    file = SettingsFile(path)
    file.set(setting, value)
    file.save()
    return path.read_text()


def values(path: Path) -> dict[str, Value]:
    settings = SettingsFile(path).settings
    return {setting.key: setting.value_in(settings) for setting in all_settings()}


def test_a_file_of_an_earlier_version_is_read_without_a_complaint(path: Path) -> None:
    file = SettingsFile(path)
    assert file.problems == ()
    assert file.settings.reading.background_reading is BackgroundPolicy.OFF
    documents = file.settings.documents
    assert (documents.max_document_size_mb, documents.import_limit_mb) == (7, 8)
    assert (documents.max_file_size_mb, documents.max_pdf_size_mb) == (9, 10)
    assert (documents.max_files, documents.import_timeout_s) == (11, 13)
    appearance = file.settings.appearance
    assert (appearance.theme, appearance.animations) == (ThemeName.NORD, False)


def test_the_next_change_rewrites_them_and_keeps_values_and_comments(path: Path) -> None:
    before = values(path)
    text = change(path, KEEP, 0.5)
    assert values(path) == before | {"reading.keep": 0.5}
    written = {f"{group}.{name}" for group, table in tomllib.loads(text).items() for name in table}
    assert written == {*RENAMED.values(), "reading.keep"}
    assert "import_timeout_s = 13  # slow disk\n" in text
    assert '# background_reading = "on AC power"\n' in text
    assert "[look]" not in text


@pytest.mark.parametrize("old", RENAMED)
def test_each_old_key_is_found_read_and_rewritten(tmp_path: Path, old: str) -> None:
    setting, (group, name) = find(old), old.split(".")
    assert setting.key == RENAMED[old]
    path = tmp_path / "settings.toml"
    stored = tomllib.loads(STORED.read_text())[group][name]
    written = f'"{stored}"' if isinstance(stored, str) else str(stored).lower()
    path.write_text(f"[{group}]\n{name} = {written}  # mine\n")
    value = values(path)[setting.key]
    assert value != setting.default
    text = change(path, KEEP, 0.5)
    assert values(path)[setting.key] == value
    assert f"\n{setting.name} = " in text
    assert "  # mine\n" in text
    assert f"\n{name} = " not in text or name == setting.name


@pytest.mark.parametrize(("old", "new"), RENAMED_VALUES["reading.background_reading"].items())
def test_each_old_value_is_read_and_rewritten(path: Path, old: str, new: BackgroundPolicy) -> None:
    path.write_text(f"[reading]\nheal = '{old}' # why\n")
    assert SettingsFile(path).settings.reading.background_reading is new
    text = change(path, KEEP, 0.5)
    assert f'background_reading = "{new}" # why\n' in text


def test_an_old_key_can_be_set_and_reset(path: Path) -> None:
    assert 'background_reading = "always"' in change(path, BACKGROUND, BackgroundPolicy.ALWAYS)
    text = change(path, BACKGROUND, BACKGROUND.default)
    assert "\nbackground_reading" not in text
    assert "heal" not in text


def test_where_both_keys_are_set_the_new_one_counts(path: Path) -> None:
    path.write_text("[look]\ntheme = 'nord'\n[appearance]\ntheme = 'dracula'\n")
    assert SettingsFile(path).settings.appearance.theme is ThemeName.DRACULA
    change(path, THEME, ThemeName.GRUVBOX)
    assert SettingsFile(path).settings.appearance.theme is ThemeName.GRUVBOX


@pytest.mark.parametrize(
    "text",
    [
        "[documents]\nnote = '''\nseconds = 3\n'''\n",
        "documents = { seconds = 3 }\n",
        "look.theme = 'nord'\n",
        "[other]\nheal = 1\nlook = 2\n",
    ],
)
def test_what_only_looks_like_an_old_key_is_not_rewritten(text: str) -> None:
    assert rewritten(text) == text
