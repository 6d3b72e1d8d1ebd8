"""What logflume brings when it is installed: packages with version and licence, as a bill of materials (CycloneDX 1.6).

python scripts/sbom.py > sbom.json        # of this environment's versions; the guide's page of licences is made of the same
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRA = "all"


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package. `licence` is what its author says: an SPDX expression where there is one."""

    name: str
    version: str
    licence: str


def packages(root: str = "logflume", *, extra: str = EXTRA) -> list[Package]:
    """Return all that a package requires, itself left out, directly or not, by name."""
    found: dict[str, Package] = {}
    waiting = [(root, extra)]
    asked: set[tuple[str, str]] = set()
    while waiting:
        asked.add(each := waiting.pop())
        try:
            installed = distribution(each[0])
        except PackageNotFoundError:
            continue  # of another platform
        found[canonicalize_name(each[0])] = Package(installed.metadata["Name"], installed.version, licence_of(installed))
        for text in installed.requires or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": each[1]}):
                waiting += [pair for extra in (needed.extras or {""}) if (pair := (needed.name, extra)) not in asked]
    found.pop(root)
    return [found[name] for name in sorted(found)]


def licence_of(installed: Distribution) -> str:
    """Return a package's licence: the expression, else its classifiers, else the first line that its author wrote."""
    told = installed.metadata.get("License-Expression")
    if told:
        return str(told)
    classified = [
        name.rpartition(" :: ")[2]
        for name in installed.metadata.get_all("Classifier") or ()
        if name.startswith("License :: OSI Approved ::")
    ]
    written = re.split(r"[\n;]", str(installed.metadata.get("License") or "").strip())[0]
    return ", ".join(classified) or written or "not stated"


def bill(found: list[Package]) -> dict[str, object]:
    """Return the bill of materials as CycloneDX has it."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "logflume", "version": distribution("logflume").version}},
        "components": [
            {
                "type": "library",
                "name": each.name,
                "version": each.version,
                "purl": f"pkg:pypi/{canonicalize_name(each.name)}@{each.version}",
                "licenses": [{"license": {"name": each.licence}}],
            }
            for each in found
        ],
    }


if __name__ == "__main__":
    json.dump(bill(packages()), sys.stdout, indent=1)
    print()
