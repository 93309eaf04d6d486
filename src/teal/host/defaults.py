"""What is so when nobody says otherwise, for those who offer it and those who do it."""

from __future__ import annotations

DEFAULT_POOL = "default"
CACHE_BYTES = 8 << 30
