"""A target across the machines of `--hosts`, on the models screen and afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from textual.pilot import Pilot

from app.extras.hosts.across import fit_across
from app.protocol.commands import Load
from app.protocol.events import HostsLost, LoadingAlone, PairLost
from app.protocol.hosts import Host, HostMachine, Hosts
from app.protocol.reasons import Failure, FailureKind
from tests.fakes import FakeEngine
from tests.ui.helpers import until, until_shown
from tests.ui.models.conftest import BIG, OTHER, Here, Make
from tests.ui.models.test_choosing import choose, do, models_of, open_models

HOSTS = Hosts((Host("studio.local", key="key"),))
GB = 1_000_000_000
LARGE = (140, 50)


class FakeMachines:
    hosts = HOSTS
    fit = staticmethod(fit_across)

    def __init__(self, problem: str = "") -> None:
        self._problem = problem

    def look(self) -> list[HostMachine]:
        other = HostMachine("studio.local", "Apple M3 Ultra", 96 * GB, 80 * GB, 0.0003, 1.1 * GB)
        if self._problem:
            other = HostMachine("studio.local", problem=self._problem)
        return [HostMachine("laptop", "Apple M4 Pro", 48 * GB, 40 * GB), other]


async def test_it_says_what_fits_across_the_machines_and_loads_it_there(
    app: Make, here: Here
) -> None:
    await here(BIG)
    engine = FakeEngine()
    async with models_of(app(engine, machines=FakeMachines()), "big-4bit", size=LARGE) as pilot:
        await choose(pilot, "big", "Use with the built-in scorer")
        await until_shown(
            pilot,
            "laptop: 40.0 GB of 48.0 GB free",
            "studio.local: 80.0 GB of 96.0 GB free, 0.3 ms, 1.1 GB/s",
            "Across 2 machines:",
            "of weights on each",
        )
        await do(pilot, "Load across 2 machines")
        await until_shown(pilot, "big-4bit on 2 machines is loaded.")
        load = engine.sent(Load)[-1]
        assert isinstance(load, Load)
        assert load.hosts is not None
        assert load.hosts.others == HOSTS.others
        assert load.hosts.model == BIG
        # A machine is lost: while it is loaded here, questions wait.
        loader = pilot.app.chat.loader  # type: ignore[attr-defined]
        gone = Failure(FailureKind.MACHINE_LOST, {"machine": "studio.local", "error": "closed"})
        engine.say(LoadingAlone(gone))
        await until(pilot, lambda: pilot.app.chat.readiness.busy)  # type: ignore[attr-defined]
        engine.say(HostsLost(gone, "big-4bit"))
        await until_shown(pilot, "so big-4bit continues on this machine alone.")
        assert not loader.busy
        assert loader.load.hosts is None
        assert "on 2 machines" not in pilot.app.chat.widgets.header.render().plain  # type: ignore[attr-defined]


@pytest.mark.slow
async def test_a_machine_that_cannot_be_used_is_named(app: Make, here: Here) -> None:
    await here(BIG)
    problem = "studio.local has mlx 0.31, but this machine has 0.32"
    async with models_of(app(machines=FakeMachines(problem)), "big-4bit", size=LARGE) as pilot:
        await choose(pilot, "big", "Use with the built-in scorer")
        await until_shown(pilot, problem, "studio.local cannot be used")


LOST = "studio.local stopped responding (gone)"
MACHINE = Failure(FailureKind.MACHINE_LOST, {"machine": "studio.local", "error": "gone"})
ALONE = Failure(
    FailureKind.NOT_LOADED_ALONE,
    {"lost": MACHINE.to_plain(), "model": "big-4bit", "error": "no room"},
)


async def spread(pilot: Pilot[None]) -> Any:
    """The loader, with a target that is loaded across the machines."""
    await open_models(pilot, "big-4bit")
    await choose(pilot, "big", "Use with the built-in scorer")
    await do(pilot, "Load across 2 machines")
    await until_shown(pilot, "big-4bit on 2 machines is loaded.")
    return pilot.app.chat.loader  # type: ignore[attr-defined]


def loads(engine: FakeEngine) -> list[Load]:
    return [each for each in engine.sent(Load) if isinstance(each, Load)]


@pytest.mark.slow
async def test_without_any_pair_it_says_what_to_do_and_the_same_one_loads_again(
    app: Make, here: Here
) -> None:
    await here(BIG)
    engine = FakeEngine()
    async with app(engine, machines=FakeMachines()).run_test(size=LARGE) as pilot:
        loader = await spread(pilot)
        engine.say(LoadingAlone(MACHINE))
        await until_shown(pilot, f"{LOST}. Loading big-4bit on this machine…")
        assert loader.busy
        engine.say(PairLost(ALONE))
        await until_shown(pilot, f"! {LOST}, and big-4bit does not load", "(Ctrl+L)")
        await until_shown(pilot, f"✗ {LOST}, and")
        assert loader.failed
        assert not loader.status_text
        await spread(pilot)
        assert loads(engine)[-1].hosts is not None
        assert len(loads(engine)) == 3
        assert not loader.failed


@pytest.mark.slow
async def test_another_pair_that_is_being_loaded_stays_the_one_that_is_shown(
    app: Make, here: Here
) -> None:
    await here(BIG, OTHER)
    engine = FakeEngine()
    async with app(engine, machines=FakeMachines()).run_test(size=LARGE) as pilot:
        loader = await spread(pilot)
        engine.step_load = True
        await loader.load_pair(OTHER, None, pilot.app.models.cache)  # type: ignore[attr-defined]
        engine.say(LoadingAlone(MACHINE))
        engine.say(HostsLost(MACHINE, "big-4bit"))
        await until_shown(pilot, "continues on this machine alone.")
        assert loader.status_text.startswith("Loading other"), loader.status_text
        engine.finish()
        await until_shown(pilot, "other is loaded.")
        assert loader.load.names[0] == "other"
        assert loader.load.hosts is None


async def test_going_back_goes_to_this_machine_alone(app: Make, here: Here) -> None:
    await here(BIG, OTHER)
    engine = FakeEngine()
    async with app(engine, machines=FakeMachines()).run_test(size=LARGE) as pilot:
        loader = await spread(pilot)
        engine.step_load = True
        engine.say(LoadingAlone(MACHINE))
        await until(pilot, lambda: loader.busy)
        await loader.load_pair(OTHER, None, pilot.app.models.cache)  # type: ignore[attr-defined]
        assert loader.changing, "another pair can be loaded instead"
        assert loader.cancel()
        engine.finish()
        await until_shown(pilot, "big-4bit is loaded again.")
        assert loads(engine)[-1].hosts is None
