"""Which torch and which extensions the Pythons of a host have, by the names of their metadata folders.

Nothing is imported and no Python is started: importing torch would open the cards. Of a folder with hundreds of
packages only the names that are asked for are kept, also in a recording.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..reader import Reader, Reading

if TYPE_CHECKING:
    from ..gather import Options

# Normal form of a name (PEP 503) of what decides how a model runs on a card.
NAMES = (
    "torch",
    "intel-extension-for-pytorch",
    "oneccl-bind-pt",
    "pytorch-triton-xpu",
    "triton-xpu",
    "vllm",
    "dpcpp-cpp-rt",
    "intel-sycl-rt",
    "pyzes",
)
# (folder, pattern of the folder of a version below it, rest of the way): where a distribution or /opt keeps packages
PLACES = (
    ("/usr/lib/python3", "", "dist-packages"),
    ("/usr/local/lib", r"python3\.[0-9]+", "dist-packages"),
    ("/usr/local/lib", r"python3\.[0-9]+", "site-packages"),
    ("/usr/lib", r"python3\.[0-9]+", "site-packages"),
    ("/usr/lib64", r"python3\.[0-9]+", "site-packages"),
)
ENVIRONMENTS = "/opt"  # each folder of it may be one


@dataclass(frozen=True)
class PythonPackages:
    """A folder of packages with one that counts. versions: name in its normal form -> version."""

    folder: str
    versions: dict[str, str]


@dataclass(frozen=True)
class Pythons:
    """Pythons of a host.

    places: folders that hold one of `NAMES`. missing: declared Pythons without a folder of packages.
    """

    places: Reading[tuple[PythonPackages, ...]]
    missing: Reading[tuple[str, ...]]


def parse_distribution(name: str) -> tuple[str, str]:
    """Return (normal name, version) of a metadata folder, twice "" for another name or one of no interest.

    Source: Python Packaging User Guide, recording installed projects and binary distribution format.

    >>> parse_distribution("intel_extension_for_pytorch-2.8.10+xpu.dist-info")
    ('intel-extension-for-pytorch', '2.8.10+xpu')
    >>> parse_distribution("torch"), parse_distribution("torchvision-0.24.0.dist-info")
    (('', ''), ('', ''))
    """
    match = re.fullmatch(r"([A-Za-z0-9][\w.-]*?)-([0-9][\w.+!]*)(?:-py3\.\d+)?\.(?:dist|egg)-info", name, re.ASCII)
    if not match:
        return "", ""
    normal = re.sub(r"[-_.]+", "-", match.group(1)).lower()
    return (normal, match.group(2)) if normal in NAMES else ("", "")


def folders_of(reader: Reader, prefix: str) -> list[str]:
    """Folders of packages of an environment; () where it is none."""
    found = []
    for lib in ("lib", "lib64"):
        for version in _listed(reader, f"{prefix}/{lib}", r"python3\.[0-9]+"):
            found += [f"{version}/{name}" for name in ("site-packages", "dist-packages")]
    return found


def _listed(reader: Reader, path: str, pattern: str) -> tuple[str, ...]:
    return reader.unrecorded.children(path, pattern)


def declared_folders(reader: Reader, declared: str) -> list[str]:
    """Folders of packages of a declared Python: an interpreter, an environment, or such a folder itself."""
    path = declared.rstrip("/")
    if re.search(r"/(?:site|dist)-packages$", path):
        return [path]
    prefix = path.rpartition("/bin/")[0] if re.search(r"/bin/[^/]+$", path) else path
    return folders_of(reader, prefix)


def read_folder(reader: Reader, folder: str) -> Reading[PythonPackages]:
    names = reader.unrecorded.names(folder)
    if names.value is None:
        return names.then(lambda _: PythonPackages(folder, {}))
    found: dict[str, str] = {}
    for name in names.value:
        if not name.endswith("-info"):
            continue
        package, version = parse_distribution(name)
        if package:
            reader.resolve(f"{folder}/{name}")  # keeps this name in a recording, and no other
            found[package] = version
    return Reading(PythonPackages(folder, found), folder)


def read(reader: Reader, options: Options) -> Pythons:
    folders: list[str] = []
    missing: list[str] = []
    for declared in options.pythons:
        own = [folder for folder in declared_folders(reader, declared) if _there(reader, folder)]
        folders += own
        if not own:
            missing.append(declared)
    for top, pattern, rest in PLACES:
        versions = _listed(reader, top, pattern) if pattern else (top,)
        folders += [f"{version}/{rest}" for version in versions]
    for prefix in _listed(reader, ENVIRONMENTS, r"[\w.-]+"):
        folders += folders_of(reader, prefix)
    places: list[PythonPackages] = []
    refused: Reading[PythonPackages] | None = None
    for folder in dict.fromkeys(folders):
        found = read_folder(reader, folder)
        if found.value is not None and found.value.versions:
            places.append(found.value)
        elif found.unread not in (None, "absent"):
            refused = refused or found
    source = "*/site-packages/*.dist-info"
    return Pythons(
        places=refused.then(lambda _: ()) if refused is not None and not places else Reading(tuple(places), source),
        missing=Reading(tuple(missing), source),
    )


def _there(reader: Reader, folder: str) -> bool:
    return reader.unrecorded.names(folder).unread != "absent"
