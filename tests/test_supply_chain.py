"""No dependency is installed, or allowed, in a version with a known hole that matters to what recarc does with files.

The audit needs no network, so it is a list kept by hand, and not a scanner: where there is a network, run one as well.
The sources are the entries of the National Vulnerability Database, https://nvd.nist.gov/vuln/detail/CVE-...
"""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

KNOWN = [  # package, affected versions, number, what a file or an attacker can do
    ("torch", "<2.6", "CVE-2025-32434", "code in a checkpoint runs despite weights_only"),
    ("torch", "<2.10", "CVE-2026-24747", "a checkpoint corrupts memory despite weights_only"),
    ("pyarrow", ">=0.14,<14.0.1", "CVE-2023-47248", "code in an IPC or Parquet file runs"),
    ("pyarrow", ">=15,<23.0.1", "CVE-2026-25087", "an IPC file corrupts memory (not reachable from Python)"),
    ("pillow", "<10.0.1", "CVE-2023-4863", "a WebP image overflows a buffer"),
    ("pillow", "<10.2", "CVE-2023-50447", "an expression of ImageMath runs code"),
    ("pillow", "<10.3", "CVE-2024-28219", "a colour profile overflows a buffer"),
    ("pillow", ">=11.2,<11.3", "CVE-2025-48379", "writing a DDS image overflows a buffer"),
    ("pillow", ">=10.3,<12.1.1", "CVE-2026-25990", "a PSD image writes out of bounds"),
    ("pillow", ">=10.3,<12.2", "CVE-2026-40192", "a FITS image fills the memory"),
    ("jinja2", "<3.1.6", "CVE-2025-27516", "a template leaves its sandbox"),
    ("scikit-learn", "<1.5", "CVE-2024-5206", "a vectorizer keeps tokens of its training data"),
    ("transformers", "<4.48", "CVE-2024-11392", "code in a checkpoint runs"),
    ("onnx", "<1.16.2", "CVE-2024-5187", "an archive overwrites any file"),
    ("onnx", "<1.21", "CVE-2026-27489", "a model reads files outside its folder"),
]


def requirements() -> dict[str, list[SpecifierSet]]:
    """What pyproject.toml allows, its extras included."""
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    allowed: dict[str, list[SpecifierSet]] = {}
    for word in re.findall(r'"([A-Za-z][\w.\[\],-]*(?:[<>=!~]=?[^"]*)?)"', text):
        try:
            found = Requirement(word)
        except ValueError:
            continue
        allowed.setdefault(found.name.lower(), []).append(found.specifier)
    return allowed


def edges(*ranges: SpecifierSet) -> set[Version]:
    """Versions at which a range begins; if two ranges overlap, they do so at one of these."""
    return {Version("0"), *(Version(part.version) for some in ranges for part in some if part.operator == ">=")}


@pytest.mark.parametrize("package, affected, number, _", KNOWN, ids=[known[2] for known in KNOWN])
def test_no_known_hole_is_installed_or_allowed(package: str, affected: str, number: str, _: str) -> None:
    bad = SpecifierSet(affected)
    assert re.fullmatch(r"CVE-20\d\d-\d{4,}", number)
    try:
        installed = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        installed = None
    assert installed is None or not bad.contains(installed, prereleases=True), f"{package} {installed}: {number}"
    allowed = requirements()[package]
    assert allowed, f"{package} is no requirement any more: drop it from the list"
    for some in allowed:
        shared = [v for v in edges(bad, some) if v in bad and v in some]
        assert not shared, f"pyproject.toml allows {package} {shared[0]}: {number}"


def test_the_audit_can_fail() -> None:
    bad, allowed = SpecifierSet(">=11.2,<11.3"), SpecifierSet(">=10.3")
    assert [v for v in edges(bad, allowed) if v in bad and v in allowed] == [Version("11.2")]
    assert {"torch", "numpy", "safetensors", "onnx"} <= requirements().keys()
