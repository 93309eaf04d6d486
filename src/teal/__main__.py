"""``python -m teal``: the command ``teal``, where the scripts of an environment are not on the path."""

from teal.cli import main

main()
