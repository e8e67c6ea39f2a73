"""Citations in a turn of the engine: what they cost, and that looking for them can be stopped."""

from __future__ import annotations

import mlx.core as mx
import pytest

from app.chat import wording
from app.engine.turn import turn
from app.protocol.citations import Citations
from app.protocol.events import Cited, EngineWarning, Finished, Token
from app.protocol.reasons import ReasonCode
from app.protocol.stats import FinishReason
from tests.engine.driver import Driver, question

MB = 1 << 20


def test_esc_while_citations_are_looked_for_ends_only_the_looking(
    loaded: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(*given: object) -> Citations:
        *_, check = given
        assert callable(check)
        loaded.cancel()
        while True:
            check()

    with monkeypatch.context() as patch:
        patch.setattr(turn, "cite", endless)
        answered = loaded.answer(question())
    assert answered.finish_reason is FinishReason.LENGTH
    written = loaded.of(Token)
    assert answered.text == "".join(each.text for each in written) != ""
    assert len(answered.generated_ids) == 12
    assert loaded.of(Cited) == []
    (warning,) = loaded.of(EngineWarning)
    assert warning.reason.code is ReasonCode.CITATIONS_STOPPED
    assert "The answer is complete" in wording.reason(warning.reason)
    assert loaded.answer(question()).generated_ids == answered.generated_ids


def test_a_stopped_answer_has_citations(loaded: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Having stopped the answer does not stop the looking as well."""

    def looked(*given: object) -> Citations:
        *_, check = given
        assert callable(check)
        check()
        return Citations((), 1)

    monkeypatch.setattr(turn, "cite", looked)
    loaded.cancel_when(lambda event: isinstance(event, Token) and bool(event.text))
    assert loaded.answer(question(tokens=64)).text
    assert [each.citations.uncited for each in loaded.of(Cited)] == [1]


def test_the_peak_of_memory_is_that_of_answering(
    loaded: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def costly(*given: object) -> Citations:
        mx.eval(mx.zeros(400 * MB, mx.uint8))
        return Citations()

    monkeypatch.setattr(turn, "cite", costly)
    before = mx.get_active_memory()
    answered = loaded.answer(question())
    assert isinstance(answered, Finished)
    assert answered.statistics is not None
    assert answered.statistics.peak_bytes < before + 400 * MB
