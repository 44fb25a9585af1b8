"""Software bill of materials (CycloneDX) of what Kvarn needs, as it is installed here; whether licences are allowed.

Usage: python deploy/supply_chain/sbom.py FOLDER (`make sbom`). Writes FOLDER/sbom.cdx.json and FOLDER/licences.txt; the
exit status is 1 where a licence is not allowed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from license_expression import AND, OR, ExpressionError, LicenseExpression, get_spdx_licensing
from packages import ROOT, installed, kvarn_requirements
from packaging.utils import canonicalize_name

ALLOWED = {
    *("0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0"),
    *("CNRI-Python", "ISC", "MIT", "MIT-0", "PSF-2.0", "Python-2.0", "Unlicense", "Zlib"),
    "MPL-2.0",  # holds for its own files, which are passed on unchanged
    "LicenseRef-NVIDIA-Proprietary",  # CUDA's libraries, beside torch for GPUs: NVIDIA's terms hold for them
}
CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""SPDX's names of the licences that packages name in PyPI's way."""
READ_BY_HAND = {
    "protobuf": "BSD-3-Clause",
    "pypdfium2": "BSD-3-Clause AND Apache-2.0",
    "ray": "Apache-2.0",
    "transformers": "Apache-2.0",
}
"""Licences of packages whose metadata has none that a program reads."""
CUDA = ("nvidia-", "cuda-toolkit")
"""Beginnings of the names of CUDA's packages, which tell NVIDIA's licence in several ways."""
_SPDX = get_spdx_licensing()


def licences(component: Mapping[str, Any]) -> list[str]:
    """SPDX expressions of a component's licences, all of which hold; what PyPI's classifiers say only where it names no
    other."""
    if component["name"].startswith(CUDA):
        return ["LicenseRef-NVIDIA-Proprietary"]
    entries = [each.get("license", each) for each in component.get("licenses", ())]
    spdx = [each.get("id") or each.get("expression") for each in entries]
    if exact := [text for text in spdx if text]:
        return exact
    if component["name"] in READ_BY_HAND:
        return [READ_BY_HAND[component["name"]]]
    names = [str(each["name"]).rpartition(" :: ")[2] for each in entries if each.get("name")]
    return [CLASSIFIERS.get(name, name) for name in names]


def is_allowed(expression: str) -> bool:
    """Whether a licence, or one that may be chosen where there is a choice, is in `ALLOWED`."""
    try:
        return _allows(_SPDX.parse(expression))
    except ExpressionError:  # a sentence, not an expression
        return False


def _allows(parsed: LicenseExpression) -> bool:
    if isinstance(parsed, OR):
        return any(map(_allows, parsed.args))
    if isinstance(parsed, AND):
        return all(map(_allows, parsed.args))
    return str(parsed) in ALLOWED


def refused(components: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each component without an allowed licence."""
    found = []
    for component in components:
        names = licences(component)
        if not names or not all(map(is_allowed, names)):
            licence = ", ".join(names) or "no licence that is named"
            found.append(f"{component['name']} {component['version']}: {licence}")
    return found


def bill_of_materials() -> dict[str, Any]:
    """The packages that Kvarn needs of those installed here, and how they need each other."""
    command = [Path(sys.executable).with_name("cyclonedx-py"), "environment", sys.executable, "--output-reproducible"]
    command += ["--pyproject", ROOT / "pyproject.toml"]
    bill = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    needed = set(installed(kvarn_requirements()))
    bill["components"] = [each for each in bill["components"] if canonicalize_name(each["name"]) in needed]
    kept = {each["bom-ref"] for each in (bill["metadata"]["component"], *bill["components"])}
    bill["dependencies"] = [
        {**each, "dependsOn": [ref for ref in each.get("dependsOn", ()) if ref in kept]}
        for each in bill["dependencies"]
        if each["ref"] in kept
    ]
    return bill


def main() -> int:
    """Write the files; 1 where a licence is not allowed."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    bill = bill_of_materials()
    (folder / "sbom.cdx.json").write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
    lines = [f"{each['name']} {each['version']}: {', '.join(licences(each))}\n" for each in bill["components"]]
    (folder / "licences.txt").write_text("".join(lines), encoding="utf-8")
    print(f"{len(lines)} packages: {folder}/sbom.cdx.json, {folder}/licences.txt")
    problems = refused(bill["components"])
    for problem in problems:
        print(f"{problem}: not among the allowed licences (deploy/supply_chain/sbom.py)", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
