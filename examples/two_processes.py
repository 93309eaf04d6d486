"""A second process calls the model that the first one loaded: python examples/two_processes.py."""

import subprocess
import sys

import teal

SECOND = """
import sys, teal
model = teal.connect(sys.argv[1]).model("sum")
print(model([1.0, 2.0, 3.0])["sum"].numpy())
"""

with teal.Host() as host:
    host.load("sum", "builtin:sum")
    subprocess.run([sys.executable, "-c", SECOND, host.address], check=True)  # 6.0
