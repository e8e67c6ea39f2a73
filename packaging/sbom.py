"""Writes the software bill of materials: every package of requirements.lock, as CycloneDX 1.6 JSON.

    python packaging/sbom.py > specchat.cdx.json

Packages that only the work on specchat needs have the scope "excluded". The same lock always gives
the same text. cyclonedx-bom is no replacement: from a lock file it can derive neither scopes nor
dependencies.
"""

from __future__ import annotations

import json
import sys
import uuid
from typing import Any

import lock
import wheels


def main() -> int:
    json.dump(bill(), sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 0


def bill() -> dict[str, Any]:
    pins, needed = lock.read(), _needed()
    own: Any = lock.project()
    reference = f"pkg:pypi/{own['name']}@{own['version']}"
    serial = uuid.uuid5(uuid.NAMESPACE_URL, reference + lock.LOCK.read_text(encoding="utf-8"))
    direct = sorted({_by_name(each, pins) for each in _direct(own)} - {None}, key=str)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": reference,
                "name": own["name"],
                "version": own["version"],
                "description": own["description"],
                "purl": reference,
                "licenses": [{"license": {"id": own["license"]}}],
            }
        },
        "components": [_component(pin, pin.name in needed) for pin in pins],
        "dependencies": [{"ref": reference, "dependsOn": direct}, *_dependencies(pins, needed)],
    }


def _component(pin: lock.Pin, needed: bool) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": _reference(pin),
        "name": pin.name,
        "version": pin.version,
        "purl": _reference(pin),
        "scope": "required" if needed else "excluded",
        # One for each file of this version; which one is installed depends on the machine.
        "externalReferences": [
            {
                "type": "distribution",
                "url": _reference(pin),
                "hashes": [{"alg": "SHA-256", "content": each} for each in pin.hashes],
            }
        ],
    }
    if pin.marker:
        component["properties"] = [{"name": "specchat:marker", "value": pin.marker}]
    return component


def _reference(pin: lock.Pin) -> str:
    return f"pkg:pypi/{pin.name}@{pin.version}"


def _needed() -> dict[str, set[str]]:
    """What runs on a Mac or on Linux, each with what it needs."""
    packages = json.loads(wheels.FILE.read_text(encoding="utf-8"))
    lines = {each["name"]: each["requires"] for each in packages}
    own: Any = lock.project()
    needed: dict[str, set[str]] = {}
    for environment in (lock.MAC, lock.LINUX):
        found = lock.closure(own["dependencies"], lambda name: lines.get(name, []), environment)
        for name, requires in found.items():
            needed.setdefault(name, set()).update(requires)
    return needed


def _direct(own: Any) -> set[str]:
    found: set[str] = set()
    for environment in (lock.MAC, lock.LINUX):
        found |= set(lock.closure(own["dependencies"], lambda _: [], environment))
    return found


def _by_name(name: str, pins: tuple[lock.Pin, ...]) -> str | None:
    """The package's reference; of one that is locked twice, the one for the formula's Python."""
    fitting = [
        p for p in pins if p.name == name and (p.holds_in(lock.MAC) or p.holds_in(lock.LINUX))
    ]
    return _reference(fitting[0]) if fitting else None


def _dependencies(pins: tuple[lock.Pin, ...], needed: dict[str, set[str]]) -> list[dict[str, Any]]:
    rows = []
    for name in sorted(needed):
        if (reference := _by_name(name, pins)) is not None:
            depends = sorted(found for each in needed[name] if (found := _by_name(each, pins)))
            rows.append({"ref": reference, "dependsOn": depends})
    return rows


if __name__ == "__main__":
    sys.exit(main())
