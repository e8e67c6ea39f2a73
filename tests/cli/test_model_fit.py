"""`specchat models search, pair, fit`, and what `list` and `show` say of memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.cli import models
from app.models.cache import ModelCache
from app.protocol.prompt import Role
from app.protocol.stats import Phase, PhaseTime
from app.store.store import Store
from tests.cli.conftest import Shell
from tests.models import fake_hub as fake
from tests.models import files
from tests.models.fake_hub import FakeHub, Fault
from tests.models.pulls import NAME, tiny_model
from tests.models.test_pairs import SIZES, folder
from tests.store.samples import answer_stats

BIG, SMALL = "mlx-community/Qwen3.5-9B-4bit", "mlx-community/Qwen3.5-0.8B-MLX-4bit"


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
    built_in = "the built-in draft · r 0.00 · nothing to download · fits 256K · the default"
    assert lines[1].strip() == f"4.5x  {built_in}"
    assert lines[2].strip().startswith(f"3.1x  {SMALL}")
    assert lines[2].endswith("the pair fits 256K")
    assert lines[3].strip().startswith("adds attention to what is found; needs ")
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
    assert "the built-in draft" in out.splitlines()[1]
    assert "No draft model is known" in out


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
    assert "top_k (it must be from 0 to 1,000,000), which is ignored." in out


def test_the_sum_line_by_line(shell: Shell, hub: FakeHub) -> None:
    status, out, err = shell("fit", BIG, "--memory", "16GB", "--draft", SMALL)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[1] == f"with {SMALL} as its draft"
    amounts = [size_of(line) for line in lines[2:7]]
    total = next(size_of(line) for line in lines if "  total · " in line)
    assert sum(amounts) == pytest.approx(total, abs=0.26)
    assert "32,768 bytes a token" in out
    assert "9.6 GB  limit · models may use 10.7 GB of 16 GB" in out
    assert "\nFits 93K tokens with full prefill.\n" in out
    assert "With sparse prefill at keep 20% or less" in out
    assert hub.asked == []


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
    assert "32,768 bytes a token" in full
    assert "17,408 bytes a token" in eight  # 8 bits, and two of 16 for each 64 numbers
    assert "9,216 bytes a token" in four
    assert "not fused" not in four, "a prefill of such a cache is"
    sinks = shell("fit", "mlx-community/gpt-oss-20b-MXFP4-Q8", "--kv-bits", "8")[1]
    assert "13,056 bytes a token" in sinks


def test_this_machine_and_the_embedded_pair(shell: Shell) -> None:
    out = shell("fit", "embedded")[1]
    assert "with embedded as its draft" in out
    assert "\nFits " in out


def test_a_model_at_the_hub_that_nobody_knows(shell: Shell, hub: FakeHub, remote: str) -> None:
    status, out, _ = shell("fit", remote, "--memory", "8GB")
    assert status == 0
    assert f"{remote} · qwen3" in out
    assert "with the built-in draft" in out
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
    assert "With the built-in draft, the first word comes 4.5x as fast" in out
    content = json.loads(shell("list", "--memory", "24GB", "--json")[1])
    big = next(row for row in content if row["name"].endswith("Qwen3.5-122B-A10B-4bit"))
    assert (big["fits"], big["draft"], big["installed"]) == (0, "builtin", False)


def test_the_built_in_draft_is_the_default_of_an_estimate(shell: Shell) -> None:
    assert shell("fit", BIG, "--memory", "16GB")[1].splitlines()[1] == "with the built-in draft"


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


@pytest.mark.parametrize(
    "arguments",
    [
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


def test_a_hub_that_cannot_be_asked(shell: Shell, hub: FakeHub, remote: str) -> None:
    hub.faults = [Fault("config.json", fake.status(500), 100)]
    status, out, err = shell("fit", remote)
    assert (status, out) == (2, "")
    assert err == (
        f"specchat: The hub could not be asked about {remote}: check the connection, or choose a"
        " model from `specchat models search`.\n"
    )


@pytest.mark.parametrize("body", [b"[]", b"{", b"\xff", b"[" * 100_000])
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
