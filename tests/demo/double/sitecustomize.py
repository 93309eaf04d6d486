"""Makes `import teal` find the double beside this file, also where the real package is installed with an import hook.

Python imports a module of this name at start from any folder of PYTHONPATH.
"""

import importlib.util
import sys
from pathlib import Path


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "teal":
            return None
        folder = Path(__file__).parent / "teal"
        return importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )


sys.meta_path.insert(0, _Finder)
