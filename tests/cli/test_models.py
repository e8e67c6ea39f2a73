"""`specchat models`: what it prints, its refusals, its progress, and what it says of memory."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from app.cli import models
from app.cli.main import parser
from app.cli.models import Display, progress_line
from app.cli.run_app import _library
from app.models.cache import ModelCache
from app.models.found import default_places
from app.models.progress import ByteProgress, ProgressMeter
from app.protocol.prompt import Role
from app.protocol.stats import Phase, PhaseTime
from app.store.store import Store
from app.util.formatting import size
from tests.cli.conftest import Shell
from tests.extras.gguf.making import write_gguf
from tests.models import fake_hub as fake
from tests.models import files, kept
from tests.models.fake_hub import FakeHub, Fault
from tests.models.pulls import NAME, tiny_model
from tests.models.test_pairs import SIZES, folder
from tests.store.samples import answer_stats
from tests.tables import table

BIG, SMALL = "mlx-community/Qwen3.5-9B-4bit", "mlx-community/Qwen3.5-0.8B-MLX-4bit"


def test_from_an_empty_cache_to_a_model_and_back(shell: Shell, hub: FakeHub) -> None:
    status, out, err = shell()
    assert (status, out) == (0, "")
    assert err.startswith("No models are installed: `specchat models pull")
    status, out, err = shell("pull", NAME)
    assert (status, out) == (0, "")
    assert f"{NAME} is installed (306 KB), and every file is verified.\n" in err
    assert shell("pull", NAME)[2].endswith("is already up to date.\n")
    assert shell("list") == (0, f"      306 KB  {NAME}\n", "")
    status, out, _ = shell("show", NAME)
    assert "Downloaded and verified by specchat." in out
    assert "      200 KB  model-00001-of-00002.safetensors" in out
    assert shell("verify", NAME)[:2] == (0, "8 files verified.\n")
    status, _, err = shell("rm", NAME)
    assert (status, "confirm it with --yes" in err) == (2, True)
    assert shell("rm", NAME, "--yes")[:2] == (0, "306 KB freed.\n")
    assert shell("list")[2].startswith("No models are installed")


@table("answer, status", [("y\n", 0), ("Yes\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
def test_on_a_terminal_it_asks_before_it_deletes(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, answer: str, status: int
) -> None:
    shell("pull", NAME)
    typed = io.StringIO(answer)
    monkeypatch.setattr(typed, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", typed)
    found, out, err = shell("rm", NAME)
    assert f"Permanently delete {NAME} (306 KB)? [y/N] " in err
    assert (found, out) == (status, "" if status else "306 KB freed.\n")
    assert (NAME in shell("list")[1]) == bool(status)


def test_as_json(shell: Shell) -> None:
    shell("pull", NAME)
    content = json.loads(shell("list", "--json")[1])
    assert [each["repository"] for each in content["installed"]] == [NAME]
    assert content["unfinished"] == []


def test_an_unfinished_one(shell: Shell, hub: FakeHub) -> None:
    hub.faults = [Fault("model-00002", fake.status(418), 100)]
    status, _, err = shell("pull", NAME)
    assert status == 2
    said = r"The hub answered with status 418; the \d+ KB downloaded so far are saved: try again"
    assert re.search(said, err)
    assert "unfinished, " in shell("list")[1]
    assert "unfinished, " in shell("show", NAME)[1]
    hub.faults = []
    assert shell("resume", NAME)[0] == 0
    status, _, err = shell("resume", NAME)
    assert (status, f"`specchat models pull {NAME}` starts one" in err) == (2, True)


def test_damage_is_told(shell: Shell, tmp_path: Path) -> None:
    shell("pull", NAME)
    snapshot = ModelCache(tmp_path / "hub").snapshot_folder(NAME)
    assert snapshot is not None
    (snapshot / "config.json").write_text('{"model_type": "qwen2"}')
    status, out, _ = shell("verify", NAME)
    assert status == 1
    assert out.splitlines()[0].startswith("'config.json' is damaged: ")


@table(
    "arguments",
    [
        *((action, "../x") for action in ("show", "pull", "pause", "resume", "rm", "verify")),
        *((action, "org/none") for action in ("show", "pause", "resume", "rm", "verify")),
        ("restore", NAME),
        ("pull", "org/none"),
        ("pull", "evil\x1b]0;title\x07\u202e/x"),
        ("search", "no", "such", "model"),
        ("search", "--memory", "much"),
        ("pair", "org/none"),
        ("pair", "../x"),
        ("pair", BIG, "--keep", "0"),
        ("pair", BIG, "--measure"),  # neither is here
        ("pair", BIG, "--keep", "nan"),
        ("fit", "org/none"),
        ("fit", "evil\x1b]0;title\x07\u202e/x"),
        ("fit", "x" * 5000),
        ("fit", "\0"),
        ("fit", NAME),  # its configuration lacks numbers
        ("fit", BIG, "--length", "long"),
        ("fit", BIG, "--length", "0"),
        ("fit", BIG, "--draft", "org/none"),
        ("fit", BIG, "--memory", "1.5GB"),
        ("list", "--memory", "0GB"),
    ],
)
def test_bad_input_gets_one_sentence(shell: Shell, arguments: tuple[str, ...]) -> None:
    status, out, err = shell(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("specchat: ")
    assert err.endswith(".\n")
    assert err[:-1].isprintable()


def test_the_line_of_progress() -> None:
    progress = ByteProgress(3_200_000_000, 7_100_000_000, 45_100_000.0, 83.2, "")
    assert progress_line(progress) == " 45%  3.2 GB of 7.1 GB · 45.1 MB/s · 1:23 left"
    assert progress_line(ByteProgress(0, 0, 0.0, None, "asking\x1b the hub")) == "asking␛ the hub"
    assert progress_line(ByteProgress(1, 9, 1e-9, 1e20, "")).endswith("99:59:59 left")
    assert size(999) == "999 B"


def test_progress_stays_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "40")
    display = Display("org/" + "x" * 50)
    display.report(ByteProgress(1, 2, 3.0, 4.0, "note\nnote"))
    assert len(screen.getvalue()) == len("\r\x1b[K") + 39
    display.clear()
    assert screen.getvalue().endswith("\r\x1b[K")
    assert "\n" not in screen.getvalue()


def test_speed_is_that_of_the_last_seconds_and_bytes_never_run_backwards() -> None:
    times = iter((0.0, 1.0, 2.0, 3.0, 3.0, 3.0, 60.0, 60.0))
    meter = ProgressMeter(lambda: next(times))
    meter.start(100, 1000)
    assert meter.read() == ByteProgress(100, 1000, 0.0, None, "")
    for _ in range(3):
        meter.add(100)
        assert meter.read().speed == pytest.approx(100)
    meter.add(-300)
    assert meter.read().done == 400
    assert meter.read().seconds_left == pytest.approx(9.0)
    assert meter.read().speed == 0.0
    meter.add(5000)
    assert meter.read().done == 1000


def test_giving_a_download_up(shell: Shell, hub: FakeHub) -> None:
    hub.faults = [Fault("model-00002", fake.status(418), 100)]
    shell("pull", NAME)
    assert "unfinished, " in shell("list")[1]
    assert shell("cancel", NAME)[1] == "Download cancelled.\n"
    assert shell("list")[2].startswith("No models are installed")
    assert "There is no unfinished download of" in shell("cancel", NAME)[2]


def test_what_only_drafts_for_another_model_is_no_model(shell: Shell, hub: FakeHub) -> None:
    for kind in ("qwen3_5_mtp", "gemma4_assistant"):
        config = json.dumps({"model_type": kind, "num_hidden_layers": 1}).encode()
        hub.add(f"org/tiny-{kind}", tiny_model() | {"config.json": config})
        for command in ("fit", "pull"):
            status, out, err = shell(command, f"org/tiny-{kind}")
            assert (status, out) == (2, "")
            assert f"only a draft head, not a complete model ({kind})" in err
    found = shell("search", "--hub", "tiny")[1]
    assert NAME in found
    assert "org/tiny-" not in found


def test_searching_the_hub_and_adding_what_was_found(shell: Shell, hub: FakeHub) -> None:
    status, out, _ = shell("search", "--hub", "tiny")
    assert (status, out.splitlines()[0]) == (0, NAME)
    assert (
        "The hub has no MLX model named like 'none such'"
        in shell("search", "--hub", "none", "such")[2]
    )
    assert shell("add", NAME)[1].startswith(f"Added {NAME} to your catalogue")
    assert NAME in shell("search", "tiny")[1]
    assert shell("add", NAME)[0] == 0
    assert len(shell("search", NAME)[1].splitlines()) == 1
    assert "There is no model folder" in shell("add", "nothing here")[2]


@pytest.fixture
def remote(hub: FakeHub) -> str:
    """A model at the hub, whose configuration is whole."""
    config = json.dumps({**SIZES, "num_hidden_layers": 3}).encode()
    hub.add("org/remote", tiny_model() | {"config.json": config})
    return "org/remote"


def test_searching_the_catalogue(shell: Shell, hub: FakeHub) -> None:
    status, out, err = shell("search", "qwen3.5", "122b", "--memory", "128GB")
    assert (status, err) == (0, "")
    assert "69.6 GB  mlx-community/Qwen3.5-122B-A10B-4bit · qwen3_5_moe" in out
    assert "122.1 billion parameters, 9.0 active" in out
    assert "apache-2.0 · fits 256K" in out
    assert "measured speedup with a 2B draft, keep 20 %" in out
    assert len(shell("search")[1].splitlines()) > 25
    assert hub.asked == []


def test_the_drafts_for_a_target(shell: Shell) -> None:
    status, out, _ = shell("pair", BIG, "--memory", "32GB")
    assert status == 0
    lines = out.splitlines()
    assert lines[0].startswith(f"{BIG} · qwen3_5, 9.0 billion parameters")
    built_in = "the built-in scorer · r 0.00 · nothing to download · fits 256K · the default"
    assert lines[1].strip() == f"4.5x  {built_in}"
    assert lines[2].strip().startswith(f"3.1x  {SMALL}")
    assert lines[2].endswith("target and draft: fits 256K")
    assert lines[3].strip().startswith("adds attention to the scores; needs ")
    assert "r 0.11 predicted" in lines[2]
    assert "of the target per token (" not in lines[4], "2.3 times is fast enough"
    assert "1 / (r + keep + 0.02)" in out
    faster = shell("pair", BIG, "--memory", "32GB", "--keep", "0.05")[1].splitlines()
    assert [line.split()[0] for line in faster[1:3]] == ["14.3x", "5.7x"]


def test_what_a_draft_needs_is_what_it_adds_to_the_estimate(shell: Shell) -> None:
    alone, pair = (
        size_of(next(line for line in out.splitlines() if "  total · " in line))
        for out in (
            shell("fit", BIG, "--memory", "32GB", "--length", "32k", *draft)[1]
            for draft in ((), ("--draft", SMALL))
        )
    )
    out = shell("pair", BIG, "--memory", "32GB")[1]
    added = next(line for line in out.splitlines() if "needs" in line).rpartition("needs ")[2]
    assert added.endswith(" of memory at 32K tokens")
    assert size_of(added) == pytest.approx((pair - alone) * 1.074, abs=0.2)  # GiB and GB


def test_without_any_draft_model_the_built_in_draft_is_listed(shell: Shell) -> None:
    status, out, _ = shell("pair", "mlx-community/Mistral-Small-3.1-24B-Instruct-2503-4bit")
    assert status == 0
    assert "the built-in scorer" in out.splitlines()[1]
    assert "No other draft model is known" in out


def test_the_default_of_the_embedded_target_is_its_own_draft(shell: Shell) -> None:
    out = shell("pair", "embedded")[1].splitlines()
    assert [line.endswith("the default") for line in out[1:3]] == [False, True]


def test_what_others_measured_of_a_pair_is_named(shell: Shell) -> None:
    out = shell("pair", "mlx-community/gpt-oss-120b-MXFP4-Q8", "--memory", "128GB")[1]
    assert "1.2 to 1.3 times" in out
    assert "1.3x  mlx-community/gpt-oss-20b-MXFP4-Q8 · r 0.56 published" in out


def test_a_pair_that_is_only_too_large_is_called_that(shell: Shell) -> None:
    out = shell("pair", "mlx-community/Qwen3.5-122B-A10B-4bit", "--memory", "64GB")[1]
    assert "is too large for this machine's 64 GB, with or without a draft model." in out
    assert "of the target per token (" not in out


def size_of(line: str) -> float:
    """In GB."""
    number, unit, *_ = line.split()
    return float(number) / {"GB": 1, "MB": 1024}[unit]


def test_how_a_model_samples_is_shown(shell: Shell, hub: FakeHub) -> None:
    config = json.dumps({**SIZES, "num_hidden_layers": 3}).encode()
    own = json.dumps({"do_sample": True, "temperature": 0.6, "top_k": -5, "top_p": 0.95}).encode()
    files = {"config.json": config, "generation_config.json": own}
    hub.add("org/sampled", tiny_model() | files)
    assert shell("pull", "org/sampled")[0] == 0
    out = shell("show", "org/sampled")[1]
    assert "Sampling by default: temperature 0.6, top-p 0.95." in out
    assert "which are ignored: top_k (it must be from 0 to 1,000,000)." in out


def test_the_sum_line_by_line(shell: Shell, hub: FakeHub) -> None:
    status, out, err = shell("fit", BIG, "--memory", "16GB", "--draft", SMALL)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[1] == f"with {SMALL} as its draft"
    amounts = [size_of(line) for line in lines[2:7]]
    total = next(size_of(line) for line in lines if "  total · " in line)
    assert sum(amounts) == pytest.approx(total, abs=0.26)
    assert "32,768 bytes per token" in out
    assert "9.6 GB  limit · models may use 10.7 GB of 16 GB" in out
    assert "\nFits 89K tokens when read in full.\n" in out
    assert "When read sparsely at keep 20% or less" in out
    assert hub.asked == []


def test_windows_that_are_not_applied(shell: Shell, hub: FakeHub) -> None:
    sizes = {**SIZES, "model_type": "mistral", "rms_norm_eps": 1e-5, "sliding_window": 512}
    for name, window in (("short", 512), ("long", 4096)):
        config = json.dumps(sizes | {"sliding_window": window}).encode()
        hub.add(f"org/{name}", tiny_model() | {"config.json": config})
    said = "org/short has sliding windows of 512 tokens, which mlx-lm does not apply."
    status, out, err = shell("fit", "org/short", "--memory", "16GB")
    assert (status, err, said in out) == (0, "", True)
    assert "sliding windows" not in shell("fit", "org/long", "--memory", "16GB")[1]


def test_at_another_length_and_with_another_draft(shell: Shell) -> None:
    draft = "mlx-community/Qwen3.5-2B-MLX-4bit"
    out = shell("fit", BIG, "--memory", "64GB", "--length", "8k", "--draft", draft)[1]
    assert f"with {draft} as its draft" in out
    assert "8,192 tokens" in out
    out = shell("fit", BIG, "--memory", "8GB", "--length", "40000")[1]
    assert "Too big: not even 4,096 tokens fit." in out


def test_with_its_cache_in_fewer_bits(shell: Shell) -> None:
    full, eight, four = (
        shell("fit", BIG, "--memory", "16GB", "--kv-bits", bits)[1] for bits in ("full", "8", "4")
    )
    assert "32,768 bytes per token" in full
    assert "17,408 bytes per token" in eight  # 8 bits, and two of 16 for each 64 numbers
    assert "9,216 bytes per token" in four
    assert "not fused" not in four, "a prefill of such a cache is"
    sinks = shell("fit", "mlx-community/gpt-oss-20b-MXFP4-Q8", "--kv-bits", "8")[1]
    assert "13,056 bytes per token" in sinks


def test_this_machine_and_the_embedded_pair(shell: Shell) -> None:
    out = shell("fit", "embedded")[1]
    assert "with embedded as its draft" in out
    assert "\nFits " in out


def test_a_model_at_the_hub_that_nobody_knows(shell: Shell, hub: FakeHub, remote: str) -> None:
    status, out, _ = shell("fit", remote, "--memory", "8GB")
    assert status == 0
    assert f"{remote} · qwen3" in out
    assert "with the built-in scorer" in out
    assert not any(asked.path.endswith(".safetensors") for asked in hub.asked)


def test_a_model_that_is_here_is_not_asked_for(shell: Shell, hub: FakeHub, remote: str) -> None:
    shell("pull", remote)
    hub.asked.clear()
    assert shell("fit", remote, "--memory", "8GB")[0] == 0
    out = shell("list", "--memory", "8GB")[1].splitlines()
    assert f"{remote} · installed · fits 4K" in out[1]
    assert "to download" in out[2]
    out = shell("show", remote)[1]
    assert f"`specchat models fit {remote}` shows the estimate." in out
    assert hub.asked == []


def test_what_fits_which_machine(shell: Shell) -> None:
    out = shell("list", "--memory", "24GB")[1]
    assert "models may use 16 GB of 24 GB" in out
    fits = [line for line in out.splitlines() if "Qwen3.5-9B" in line]
    assert fits[0].endswith("to download · fits 256K")
    assert "With the built-in scorer, the first word comes 4.5x as fast" in out
    content = json.loads(shell("list", "--memory", "24GB", "--json")[1])
    big = next(row for row in content if row["name"].endswith("Qwen3.5-122B-A10B-4bit"))
    assert (big["fits"], big["draft"], big["installed"]) == (0, "builtin", False)


def test_the_built_in_draft_is_the_default_of_an_estimate(shell: Shell) -> None:
    assert shell("fit", BIG, "--memory", "16GB")[1].splitlines()[1] == "with the built-in scorer"


def test_a_users_own_catalogue(shell: Shell, home: Path) -> None:
    path = folder(home / "mine", layers=4)
    settings = home / "config" / "specchat"
    settings.mkdir(parents=True)
    (settings / "catalog.toml").write_text(f'[[model]]\nname = "{path}"\nfamily = "Mine"\n')
    assert str(path) in shell("search", "mine", "--memory", "8GB")[1]
    (settings / "catalog.toml").write_text("[[model]]")
    status, out, err = shell("search")
    assert (status, out) == (2, "")
    assert "has no name" in err


def test_the_clock_is_asked(shell: Shell, home: Path) -> None:
    """0.5 of the target per token, in an answer that is kept."""
    with Store(home / "data" / "specchat") as store:
        conversation = store.create()
        question = store.add_message(conversation.id, Role.USER, "?")
        reply = store.begin_reply(question.id)
        reply.finish(timed())
    out = shell("pair", BIG, "--memory", "32GB")[1]
    assert f"{SMALL} · r 0.50 measured" in out


def timed() -> Any:
    return answer_stats(
        reused_tokens=0,
        recalled_tokens=0,
        phases=(PhaseTime(Phase.SCORE, 2.0), PhaseTime(Phase.PREFILL, 1.0)),
        read_tokens=250,
        prompt_tokens=1000,
        target=BIG.partition("/")[2],
        draft=SMALL.partition("/")[2],
    )


def test_a_hub_that_cannot_be_asked(shell: Shell, hub: FakeHub, remote: str) -> None:
    hub.faults = [Fault("config.json", fake.status(500), 100)]
    status, out, err = shell("fit", remote)
    assert (status, out) == (2, "")
    assert err == (
        f"specchat: The hub could not be asked about {remote}: check the connection, or choose a"
        " model from `specchat models search`.\n"
    )


@table("body", [b"[]", b"{", b"\xff", b"[" * 100_000])
def test_a_configuration_that_is_none(shell: Shell, hub: FakeHub, body: bytes) -> None:
    hub.add("org/odd", tiny_model() | {"config.json": body})
    status, _, err = shell("fit", "org/odd")
    assert status == 2
    assert "org/odd is not a JSON object" in err


def test_show_still_lists_files_when_memory_cannot_be_told(shell: Shell) -> None:
    shell("pull", NAME)
    status, out, _ = shell("show", NAME)
    assert status == 0
    assert "The configuration of this qwen3 model lacks hidden_size" in out
    assert "model-00001-of-00002.safetensors" in out


def test_a_damaged_store_does_not_matter(home: Path) -> None:
    (home / "data" / "specchat").mkdir(parents=True)
    (home / "data" / "specchat" / "conversations.db").write_bytes(b"no database")
    assert models._answer_stats() == ()


def test_an_incomplete_model_is_left_out(shell: Shell, tmp_path: Path, remote: str) -> None:
    shell("pull", remote)
    snapshot = ModelCache(tmp_path / "hub").snapshot_folder(remote)
    assert snapshot is not None
    (snapshot / "model-00002-of-00002.safetensors").unlink()
    files.write(snapshot / "tokenizer_config.json", {})
    assert remote not in shell("list", "--memory", "8GB")[1]


def test_they_are_listed_below_the_installed_ones(shell: Shell, home: Path) -> None:
    shell("pull", NAME)
    kept.lm_studio(home)
    blob = kept.ollama(home / ".ollama/models", "llama", "8b")
    kept.ollama(home / ".ollama/models", "llama", "latest")
    status, out, err = shell("list")
    installed, gguf, mlx, ollama = out.splitlines()
    assert status == 0
    assert installed.endswith(NAME)
    folder = "~/.lmstudio/models"
    assert gguf.endswith(f" · LM Studio · {folder}/gguf-people/Big-GGUF/Big-Q4_K_M.gguf · GGUF")
    assert mlx.endswith(f"  mlx-people/Small-4bit · LM Studio · {folder}/mlx-people/Small-4bit")
    assert ollama.endswith(
        f"  llama:8b, llama:latest · Ollama · ~/.ollama/models/blobs/{blob.name} · GGUF"
    )
    assert err == "`specchat models add PATH` converts a GGUF file.\n"


def test_their_faults_are_said(shell: Shell, home: Path) -> None:
    kept.ollama(home / ".ollama/models", "llama", "8b").unlink()
    assert "is missing: pull the model again with Ollama" in shell("list")[1]


def test_mlx_models_alone_need_no_advice(shell: Shell, home: Path) -> None:
    files.model(home / ".lmstudio/models/a/b")
    assert "converts" not in shell("list")[2]


def test_found_ones_as_json(shell: Shell, home: Path) -> None:
    folder = kept.lm_studio(home)
    gguf, mlx = json.loads(shell("list", "--json")[1])["found"]
    path = folder / "gguf-people/Big-GGUF/Big-Q4_K_M.gguf"
    assert gguf == {
        "name": "Big-Q4_K_M",
        "kind": "gguf",
        "program": "LM Studio",
        "path": str(path),
        "size": path.stat().st_size,
        "fault": None,
        "aliases": [],
    }
    assert (mlx["kind"], mlx["path"]) == ("mlx", str(folder / "mlx-people/Small-4bit"))


def test_the_folders_of_the_setting_are_searched(shell: Shell, home: Path) -> None:
    kept.gguf_file(home / "my models/a.gguf")
    settings = home / "config/specchat/settings.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('[models]\nfolders = "~/my models:/nowhere"\n')
    _, out, err = shell("list")
    assert "  a · your folder · ~/my models/a.gguf · GGUF\n" in out
    assert "There is no folder '/nowhere', which the setting models.folders names.\n" in err


def test_one_is_shown_by_its_name_or_its_path(shell: Shell, home: Path) -> None:
    blob = kept.ollama(home / ".ollama/models", "llama", "8b", context=40_960)
    for name in ("llama:8b", str(blob), f"~/.ollama/models/blobs/{blob.name}"):
        status, out, err = shell("show", name)
        first, second, third = out.splitlines()
        assert status == 0
        assert first.endswith(f"llama:8b · Ollama · ~/.ollama/models/blobs/{blob.name} · GGUF")
        assert second == "specchat never changes or deletes it."
        assert third == "A Model · 256 · Q4_K_M · qwen3 · context 41K"
        assert err.endswith(f"/{blob.name}` converts it.\n")


def test_a_gguf_file_anywhere_is_shown_by_its_path(
    shell: Shell, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kept.gguf_file(home / "x.gguf")
    monkeypatch.chdir(home)
    for name in ("x.gguf", str(path), "~/x.gguf"):
        status, out, err = shell("show", name)
        assert status == 0
        first, second = out.splitlines()
        assert first.endswith("  x · ~/x.gguf · GGUF")
        assert second == "A Model · 256 · Q4_K_M · qwen3 · context 41K"
        assert err == "`specchat models add ~/x.gguf` converts it.\n"


@table("name", ["none.gguf", "text.gguf", "~nobody-here/x.gguf", "a\0.gguf"])
def test_a_gguf_file_that_cannot_be_read_is_one_sentence(
    shell: Shell, home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(home)
    (home / "text.gguf").write_text("text")
    status, out, err = shell("show", name)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("specchat: ")


def test_a_folder_anywhere_is_shown_by_its_path(shell: Shell, home: Path) -> None:
    path = folder(home / "mine", layers=4)
    out = shell("show", str(path))[1]
    assert "qwen3" in out
    assert "Fits " in out


def test_an_installed_one_of_the_same_name_is_shown(shell: Shell, home: Path) -> None:
    files.model(home / ".lmstudio/models" / NAME)
    assert "LM Studio" in shell("show", NAME)[1]
    shell("pull", NAME)
    assert "Downloaded and verified by specchat." in shell("show", NAME)[1]


@table("name", ["no/such", "/no/such", "a\0b", ""])
def test_one_that_is_nowhere_is_one_sentence(shell: Shell, name: str) -> None:
    status, out, err = shell("show", name)
    assert (status, out, err.count("\n")) == (2, "", 1)


def test_a_damaged_header_is_one_sentence(shell: Shell, home: Path) -> None:
    path = kept.gguf_file(home / ".lmstudio/models/a/b/c.gguf")
    path.write_bytes(path.read_bytes()[:100])
    status, _, err = shell("show", "c")
    assert (status, err.count("\n")) == (2, 1)
    assert "is damaged" in err


def test_a_name_cannot_write_to_the_terminal(shell: Shell, home: Path) -> None:
    path = kept.gguf_file(home / ".lmstudio/models/a/b/plain.gguf")
    os.rename(path, os.fsencode(path.parent) + b"/\xff\x1b[31m.gguf")
    status, out, _ = shell("list")
    assert (status, "\x1b" in out, "[31m" in out) == (0, False, True)
    assert shell("list", "--json")[0] == 0


def test_the_app_searches_the_same_folders(home: Path) -> None:
    assert _library().places() == default_places()


def test_the_help_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["models", "--help"])
    assert "LM Studio" in capsys.readouterr().out


@pytest.fixture
def tiny(home: Path) -> Path:
    write_gguf(home / "tiny.gguf", "llama")
    return home / "tiny.gguf"


def test_a_file_is_converted_listed_and_removed(tiny: Path, shell: Shell) -> None:
    status, out, _ = shell("add", str(tiny))
    assert status == 0
    assert "llama, " in out
    assert "All matrices are identical to those in the file." in out
    assert out.endswith(" KB).\n")
    assert "local/tiny is installed (" in out
    _, listed, _ = shell("list", "--json")
    (installed,) = json.loads(listed)["installed"]
    assert (installed["repository"], installed["fault"]) == ("local/tiny", None)
    assert shell("verify", "local/tiny")[0] == 0
    status, _, err = shell("add", str(tiny))
    assert status == 2
    assert "local/tiny is already installed" in err
    assert shell("rm", "local/tiny", "--yes")[0] == 0
    assert shell("add", str(tiny), "--bits", "4", "--as", "other")[0] == 0


def test_parts_are_given_in_order(tiny: Path, shell: Shell) -> None:
    data = tiny.read_bytes()
    parts = [tiny.with_name(f"tiny.gguf.part0{n}") for n in range(2)]
    parts[0].write_bytes(data[: len(data) // 2])
    parts[1].write_bytes(data[len(data) // 2 :])
    status, out, _ = shell("add", *map(str, parts))
    assert status == 0
    assert "local/tiny is installed (" in out
    status, _, err = shell("add", *map(str, reversed(parts)), "--as", "backwards")
    assert status == 2
    assert "is not a GGUF file" in err


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "There is no file"), (b"GGUF", "is damaged"), (b"hello", "is not a GGUF")],
)
def test_what_is_no_gguf_file_is_a_sentence(
    content: bytes | None,
    sentence: str,
    tiny: Path,
    shell: Shell,
) -> None:
    path = tiny.with_name("other.gguf")
    if content is not None:
        path.write_bytes(content)
    status, out, err = shell("add", str(path))
    assert (status, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_a_name_that_cannot_be_one_is_refused(tiny: Path, shell: Shell) -> None:
    status, _, err = shell("add", str(tiny), "--as", "a b")
    assert status == 2
    assert "'a b' cannot be the name of a model" in err


def test_a_file_of_ollamas_gets_the_name_that_ollama_has_for_it(
    shell: Shell, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def whole(path: Path, *, context: int) -> Path:
        path.parent.mkdir(parents=True)
        write_gguf(path, "llama")
        return path

    monkeypatch.setattr(kept, "gguf_file", whole)
    blob = kept.ollama(home / ".ollama/models", "llama", "8b")
    status, out, _ = shell("add", str(blob))
    assert status == 0
    assert "local/llama-8b is installed (" in out
    assert blob.is_file(), "it is left where it was"
