"""`--hosts` and `specchat hosts`: a target over this machine and others."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from app.chat.conversation import Conversation, Question, Turn
from app.chat.model_pairs import resolve_pair
from app.cli import run_app
from app.cli.main import run
from app.cli.report import Report
from app.engine.cache.sizes import Transient
from app.extras.hosts.cluster import RankMemory
from app.protocol.events import HostsLost, LoadingAlone
from app.protocol.hosts import Host, Hosts
from app.protocol.reasons import Failure, FailureKind
from tests import tiny
from tests.extras.hosts import fakes
from tests.extras.hosts.fakes import DESCRIBED, FakeShard
from tests.extras.hosts.machines import workers
from tests.tables import table


def typed(hosts: Hosts) -> str:
    return ",".join(f"{host.key}@{host.name}" for host in hosts.others)


@pytest.mark.parametrize("draft", [None, "embedded"])
def test_the_target_has_the_name_there_that_the_user_typed(draft: str | None) -> None:
    hosts = Hosts((Host("10.0.0.2", key="k"),))
    load = resolve_pair("embedded", draft, hosts=hosts)
    assert load.hosts == Hosts(hosts.others, model="embedded")
    assert resolve_pair("embedded", draft).hosts is None


def test_the_machines_are_a_table(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with workers(1) as hosts:
        monkeypatch.setenv("SPECCHAT_HOSTS", typed(hosts))
        assert run(["hosts"]) == 0
        head, own, other = capsys.readouterr().out.splitlines()
        assert head.split() == ["machine", "processor", "free", "memory", "latency", "rate"]
        assert own.split()[-2:] == ["-", "-"]
        assert other.startswith(hosts.others[0].name)
        assert " ms " in other
        assert other.endswith("B/s")
        monkeypatch.delenv("SPECCHAT_HOSTS")
        assert run(["--hosts", hosts.others[0].name, "hosts", "--json"]) == 0
        own_values, values = json.loads(capsys.readouterr().out)
        assert own_values["latency"] is None
        assert values["name"] == hosts.others[0].name
        assert values["total"] == own_values["total"]
        assert values["rate"] > 0
    assert run(["hosts"]) == 1, "its key is stored, but it has ended"
    out = capsys.readouterr().out
    assert f"\n{hosts.others[0].name} does not answer as a specchat worker (" in out


def test_without_machines_it_says_how_to_get_some(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["hosts"]) == 2
    assert "run `specchat worker` on one, and type the line" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["--hosts", "k@10.0.0.2"], ["hosts", "k@10.0.0.2,10.0.0.3"]])
def test_a_key_on_the_command_line_is_refused_and_not_shown(
    command: list[str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command) == 2
    refused = capsys.readouterr().err
    assert "A key in a command is visible to every user" in refused
    assert "k@" not in refused


@table("command", ["doctor", "settings", "eval --n 3"])
def test_commands_of_one_machine_do_not_ignore_it(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--hosts", "k@10.0.0.2", *command.split()]) == 2
    assert f"`specchat {command.split()[0]}` uses this machine only" in capsys.readouterr().err


def test_the_app_takes_them_from_the_environment(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Hosts] = []
    monkeypatch.setattr(run_app, "run_app", lambda chosen: started.append(chosen.hosts) or 0)
    monkeypatch.setenv("SPECCHAT_HOSTS", "k@10.0.0.2")
    assert run([]) == 0
    assert [host.key for host in started[0].others] == ["k"]


def test_a_lost_machine_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(Turn(1, Question("Why?")), Conversation())
    gone = Failure(FailureKind.MACHINE_LOST, {"machine": "\x1b[1m10.0.0.2", "error": "closed"})
    report.show(HostsLost(gone, "big"))
    assert capsys.readouterr().err.startswith("␛[1m10.0.0.2 stopped responding (closed)")
    report.show(LoadingAlone(gone))
    assert "Loading the target on this machine…" in capsys.readouterr().err


def question(folder: Path) -> list[str]:
    tiny.save(folder / "target", "llama", 0)
    (folder / "text.txt").write_text("".join(f"Line {n} says {n * n}.\n" for n in range(40)))
    about = ["--target", str(folder / "target"), "-f", str(folder / "text.txt"), "--full"]
    return ["ask", *about, "--max-tokens", "8", "--temp", "0", "What?"]


class Dying(FakeShard):
    """Ends once it has loaded and is asked for something."""

    def work(self) -> None:
        self.ready()
        self.until("name")
        self.connection.send({"joined": True})
        transient = Transient(4, 0, 4, 2, on_cpu=True)
        described = {**DESCRIBED, "dense_only": [], "transient": asdict(transient)}
        memory = list(RankMemory(10e9, 10e9, 0.0))
        self.connection.send({"described": described, "memory": memory})
        self.connection.receive(30)
        self.kill()


def test_a_target_is_spread_and_answers_alone_when_a_machine_is_lost(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, said = question(home), list[str]()
    assert run(ask) == 0
    alone = capsys.readouterr().out
    started = fakes.use(monkeypatch, Dying)
    with workers(1, said) as hosts:
        monkeypatch.setenv("SPECCHAT_HOSTS", typed(hosts))
        assert run(ask) == 0
    out, err = capsys.readouterr()
    assert out == alone
    assert {shard.rank for shard in started} == {0, 1}
    assert said[0] == "127.0.0.1 uses this machine for a shard of target."
    assert "Loading the target on this machine…" in err


@pytest.mark.slow
def test_an_answer_over_two_processes_is_that_of_one(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, said = question(home), list[str]()
    assert run(ask) == 0
    alone = capsys.readouterr().out
    with workers(1, said) as hosts:
        monkeypatch.setenv("SPECCHAT_HOSTS", typed(hosts))
        assert run(ask) == 0
    assert capsys.readouterr().out == alone
    assert said[0] == "127.0.0.1 uses this machine for a shard of target."
