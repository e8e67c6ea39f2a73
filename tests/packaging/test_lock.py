"""What is read off requirements.lock, and what specchat needs of it on which machine."""

from __future__ import annotations

import lock


def test_every_line_of_the_lock_is_read() -> None:
    text = lock.LOCK.read_text(encoding="utf-8")
    pins = lock.read()
    assert len(pins) == text.count("==") - text.count("== '")
    assert sum(len(pin.hashes) for pin in pins) == text.count("--hash=")
    assert all(pin.hashes for pin in pins)


def test_a_pin_with_a_marker_and_one_without() -> None:
    first, second = "a" * 64, "b" * 64
    text = (
        f"one==1.0 ; sys_platform == 'darwin' \\\n    --hash=sha256:{first} \\\n"
        f"    --hash=sha256:{second}\ntwo==2 \\\n    --hash=sha256:{second}\n"
    )
    one, two = lock.read(text)
    assert (one.name, one.version, one.hashes) == ("one", "1.0", (first, second))
    assert one.holds_in(lock.MAC)
    assert not one.holds_in(lock.LINUX)
    assert (two.marker, two.hashes) == (None, (second,))
    assert two.holds_in(lock.LINUX)


def test_what_a_requirement_brings_in() -> None:
    lines = {
        "one": ["two[fast]>=1", "mac; sys_platform == 'darwin'"],
        "two": ["quick; extra == 'fast'", "slow; extra == 'slow'", "one"],
    }
    found = lock.closure(["One"], lambda name: lines.get(name, []), lock.LINUX)
    assert found == {"one": {"two"}, "two": {"quick", "one"}, "quick": set()}
    assert "mac" in lock.closure(["one"], lambda name: lines.get(name, []), lock.MAC)
