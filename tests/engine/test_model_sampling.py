"""A model's own generation_config.json decides how its answers are sampled, unless a user does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from app.protocol.events import EngineWarning, Loaded, MemoryReport
from app.protocol.options import FROM_MODEL, Mode, ModelSampling, Sampling
from app.protocol.reasons import Reason, ReasonCode
from tests import tiny
from tests.engine.driver import Driver, question

RECOMMENDED = {"do_sample": True, "temperature": 1.5, "top_k": 40, "repetition_penalty": 1.3}


def test_what_nobody_chose_is_sampled_as_the_model_s_makers_recommend(
    tmp_path: Path, driver: Driver
) -> None:
    folder = tiny.save(tmp_path / "m")
    config = RECOMMENDED | {"top_p": 40}
    (folder / "generation_config.json").write_text(json.dumps(config))
    loaded = driver.load(folder)
    assert isinstance(loaded, Loaded)
    assert loaded.target.sampling == ModelSampling(1.5, 1.0, 40, 0.0, 1.3, ("top_p",))
    driver.until(MemoryReport)
    (warning,) = driver.of(EngineWarning)
    assert warning.reason == Reason(ReasonCode.SAMPLING_IGNORED, {"names": ["top_p"]})

    def answer(sampling: Sampling) -> tuple[int, ...]:
        ask = replace(question(Mode.FULL, text="The gate is 7."), conversation=None)
        return driver.answer(replace(ask, sampling=sampling)).generated_ids

    base = Sampling(max_tokens=12, seed=7)
    own = answer(replace(base, from_model=FROM_MODEL))
    assert own == answer(base.with_values(temperature=1.5, top_k=40, repetition_penalty=1.3))
    greedy = answer(base)
    assert own != greedy
    chosen = replace(base, from_model=FROM_MODEL).with_values(
        temperature=0.0, repetition_penalty=1.0
    )
    assert answer(chosen) == greedy
