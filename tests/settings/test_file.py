"""The settings' file: what is wrong in it costs one setting, and what stands there stays."""

from __future__ import annotations

import stat
import tempfile
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.settings.definitions import Setting, Settings, ThemeName, Value, all_settings, find
from app.settings.file import EditError, SettingsError, SettingsFile, template, with_setting
from tests.tables import table

KEEP, MODE, THEME = find("reading.keep"), find("reading.mode"), find("appearance.theme")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "settings.toml"


def opened(path: Path, text: str) -> SettingsFile:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode())
    return SettingsFile(path)


def change(file: SettingsFile, setting: Setting, value: Value) -> None:
    file.set(setting, value)
    file.save()


# ------------------------------------------------------------------------------ reading


HOSTILE = {
    "lists in lists": f"[reading]\nkeep = {'[' * 5000}{']' * 5000}",
    "tables in tables": f"[reading]\nkeep = {'{a = ' * 3000}1{'}' * 3000}",
    "keys of many parts": f"[reading]\n{'.'.join('a' * 2_000)} = 1",
    "keys below a setting": f"[reading]\nkeep.{'.'.join('a' * 2_000)} = 1",
    "a huge number": f"[reading]\nkeep = 0x{'f' * 10_000}",
    "many digits": f"[reading]\nkeep = {'9' * 10_000}",
    "no number": "[reading]\nkeep = nan",
}


@table("name", HOSTILE)
def test_hostile_values_cost_a_sentence_and_saving_says_so_or_works(
    name: str, tmp_path: Path
) -> None:
    file = opened(Path(tempfile.mkdtemp(dir=tmp_path)) / "settings.toml", HOSTILE[name])
    assert file.settings == Settings()
    assert file.problem
    with suppress(SettingsError):
        change(file, THEME, [*ThemeName][-1])


def test_without_a_file_all_have_their_defaults_and_none_is_made(path: Path) -> None:
    file = SettingsFile(path)
    file.save()
    assert (file.settings, file.problems) == (Settings(), ())
    assert not path.parent.exists()


def test_a_new_file_says_what_everything_means_and_sets_nothing(path: Path) -> None:
    data = tomllib.loads(template())
    assert [value for table in data.values() for value in table] == []
    for setting in all_settings():
        assert f"\n# {setting.name} = " in template()
    assert max(map(len, template().splitlines())) <= 100
    assert opened(path, template()).problems == ()


@table(
    "line, words",
    [
        (
            "keep = 3",
            ["'reading.keep'", "is 3", "a number from 0 to 1, or 'auto'. Using auto."],
        ),
        ("keep = 'much'", ["'reading.keep'", "'much'"]),
        ("kep = 0.3", ["Unknown setting 'reading.kep'", "Did you mean 'reading.keep'?"]),
        ("keep = ,", ["Line 3", "'keep = ,'", "isn't valid TOML"]),
        ("keep = 0.3\nkeep = 0.4", ["Line 4", "'keep = 0.4'"]),
        ("keep", ["Line 3", "'keep'"]),
    ],
)
def test_a_mistake_costs_that_one_setting(path: Path, line: str, words: list[str]) -> None:
    text = f"[reading]\nmode = 'full'  # always\n{line}\n[appearance]\nanimations = false\n"
    file = opened(path, text)
    assert len(file.problems) == 1
    for word in [*words, str(path)]:
        assert word in file.problems[0]
    assert file.settings.reading.mode == "full"
    assert file.settings.appearance.animations is False
    assert path.read_text() == text


def test_several_mistakes_are_reported_in_one_line(path: Path) -> None:
    file = opened(path, "[reading]\nkeep = 7\nmode = 8\n[appearance]\ntheme = 'x'\n")
    assert len(file.problems) == 3
    assert file.problem.endswith(" 2 more problems: see F2.")


@pytest.mark.parametrize("data", [b"\xff\xfe[", b"'''\n" * 50, b"reading = 1\n", b"\0" * 9])
def test_a_file_that_is_no_settings_file_is_ignored_and_not_overwritten(
    path: Path, data: bytes
) -> None:
    path.parent.mkdir()
    path.write_bytes(data)
    file = SettingsFile(path)
    assert file.settings == Settings()
    assert file.problems
    file.set(KEEP, 0.5)
    with pytest.raises(SettingsError, match=r"reading\.keep.*applies only until"):
        file.save()
    assert file.settings.reading.keep == 0.5
    assert path.read_bytes() == data


def test_an_unreadable_file_is_reported(path: Path) -> None:
    path.mkdir(parents=True)
    file = SettingsFile(path)
    assert "cannot be read" in file.problem
    file.set(KEEP, 0.5)
    with pytest.raises(SettingsError, match="cannot be changed"):
        file.save()


# ------------------------------------------------------------------------------ writing


def test_a_change_is_there_at_the_next_start_and_only_it_is_written(path: Path) -> None:
    change(SettingsFile(path), KEEP, 0.35)
    assert SettingsFile(path).settings == KEEP.with_value(Settings(), 0.35)
    assert set(path.read_text().splitlines()) - set(template().splitlines()) == {"keep = 0.35"}
    assert [entry.name for entry in path.parent.iterdir()] == ["settings.toml"]


def test_the_words_of_the_screen_are_written_and_read(path: Path) -> None:
    file = opened(path, "[reading]\nkeep = 0.5\n[answers]\ntop_k = 3\ntemperature = 0.7\n")
    for key, value in (("reading.keep", 0), ("answers.top_k", 0), ("answers.temperature", -1)):
        change(file, find(key), value)
    saved = path.read_text()
    assert 'top_k = "all"\n' in saved
    assert not {"keep", "temperature"} & set(saved.split())  # as by default
    words = 'temperature = "the model\'s own"\nthinking = "off"\nthinking_budget = "No limit"\n'
    again = opened(path, f"[answers]\n{words}")
    assert again.problems == ()
    assert not again.settings.answers.thinking


def test_comments_unknown_keys_and_line_ends_stay(path: Path) -> None:
    text = (
        "# mine\r\n[reading]\r\nkeep = 0.5  # half\r\nfuture = [1,\r\n 2]\r\n\r\n[x]\r\ny = 1\r\n"
    )
    file = opened(path, text)
    change(file, KEEP, 0.6)
    assert path.read_bytes().decode() == text.replace("0.5", "0.6")
    change(file, MODE, "full")
    assert path.read_bytes().decode() == text.replace("0.5", "0.6").replace(
        " 2]\r\n", ' 2]\r\nmode = "full"\r\n'
    )


def test_resetting_a_value_removes_its_line_and_leaves_its_comment(path: Path) -> None:
    file = opened(path, "[reading]\nkeep = 0.5  # half\n[appearance]\ntheme = 'nord'\n")
    change(file, KEEP, 0.0)
    change(file, THEME, ThemeName.AUTO)
    assert path.read_text() == "[reading]\n# half\n[appearance]\n"


def test_an_invalid_value_is_replaced_when_the_setting_is_changed(path: Path) -> None:
    file = opened(path, '[reading]\nkeep = "many"\n')
    change(file, KEEP, 0.0)
    assert path.read_text() == "[reading]\n"


def test_what_another_program_wrote_meanwhile_stays(path: Path) -> None:
    here, there = SettingsFile(path), SettingsFile(path)
    change(here, KEEP, 0.5)
    change(there, THEME, ThemeName.NORD)
    both = SettingsFile(path).settings
    assert (both.reading.keep, both.appearance.theme) == (0.5, "nord")


@pytest.mark.parametrize("text", ["reading = { keep = 0.5 }\n", '[reading]\n"keep" = 0.5\n'])
def test_what_is_written_in_another_way_is_not_rewritten(path: Path, text: str) -> None:
    file = opened(path, text)
    assert file.settings.reading.keep == 0.5
    file.set(KEEP, 0.6)
    with pytest.raises(SettingsError, match="change it in an editor"):
        file.save()
    assert path.read_text() == text


def test_a_failed_save_is_tried_again_with_the_next_one(path: Path) -> None:
    path.parent.write_text("in the way")
    file = SettingsFile(path)
    file.set(KEEP, 0.5)
    with pytest.raises(SettingsError):
        file.save()
    path.parent.unlink()
    change(file, THEME, ThemeName.NORD)
    assert SettingsFile(path).settings.reading.keep == 0.5
    assert not file.has_unsaved


def test_a_link_stays_a_link_and_permissions_stay(path: Path, tmp_path: Path) -> None:
    real = tmp_path / "elsewhere.toml"
    real.write_text("")
    real.chmod(0o600)
    path.parent.mkdir()
    path.symlink_to(real)
    change(SettingsFile(path), KEEP, 0.5)
    assert path.is_symlink()
    assert tomllib.loads(real.read_text()) == {"reading": {"keep": 0.5}}
    assert stat.S_IMODE(real.stat().st_mode) == 0o600


LINES = st.sampled_from(
    [
        "[reading]",
        "[ appearance ] # looks",
        "[other]",
        "keep = 0.5",
        "keep=1 # all",
        "mode = 'full'",
        'theme = "nord"',
        "# keep = 0.2",
        "text = '''",
        "'''",
        "list = [",
        "]",
        "reading.keep = 0.4",
        "reading = {}",
        "x = 1",
        "",
        "#",
    ]
)


@given(
    st.lists(LINES, max_size=12), st.sampled_from([KEEP, MODE, THEME]), st.booleans(), st.booleans()
)
def test_an_edit_changes_that_value_and_nothing_else(
    lines: list[str], setting: Setting, removes: bool, ended: bool
) -> None:
    text = "\n".join(lines) + "\n" * ended
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    value: Value = {"keep": 0.3, "mode": "auto", "theme": "gruvbox"}[setting.name]
    try:
        new = with_setting(text, setting, None if removes else value)
    except EditError:
        return
    table = data.get(setting.group, {})
    if removes:
        table.pop(setting.name, None)
    else:
        data[setting.group] = table | {setting.name: value}
    assert tomllib.loads(new) == data
    comments = [line for line in lines if line.startswith("#")]
    for comment in set(comments):
        assert new.split("\n").count(comment) >= comments.count(comment)
