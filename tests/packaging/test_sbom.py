"""The software bill of materials names what requirements.lock names."""

from __future__ import annotations

import json

import lock
import sbom


def test_every_package_of_the_lock_with_its_hashes() -> None:
    listed = {
        (each["name"], each["version"]): {
            digest["content"] for digest in each["externalReferences"][0]["hashes"]
        }
        for each in sbom.bill()["components"]
    }
    assert listed == {(pin.name, pin.version): set(pin.hashes) for pin in lock.read()}


def test_what_runs_is_told_from_what_builds() -> None:
    scopes = {each["name"]: each["scope"] for each in sbom.bill()["components"]}
    for name in ("mlx", "mlx-metal", "mlx-cpu", "textual", "numpy", "pypdfium2", "uvicorn"):
        assert scopes[name] == "required", name
    for name in ("pytest", "mypy", "ruff", "hypothesis", "build", "openai"):
        assert scopes[name] == "excluded", name


def test_references_are_unique_and_lead_somewhere() -> None:
    bill = sbom.bill()
    references = [each["bom-ref"] for each in bill["components"]]
    assert len(references) == len(set(references))
    own = bill["metadata"]["component"]["bom-ref"]
    rows = {each["ref"]: each["dependsOn"] for each in bill["dependencies"]}
    assert set(rows) <= {own, *references}
    assert {each for depends in rows.values() for each in depends} <= set(references)
    assert any(each.startswith("pkg:pypi/textual@") for each in rows[own])
    assert "pkg:pypi/transformers@" in "".join(rows[next(r for r in rows if "/mlx-lm@" in r)])


def test_the_same_lock_gives_the_same_text() -> None:
    assert json.dumps(sbom.bill()) == json.dumps(sbom.bill())
