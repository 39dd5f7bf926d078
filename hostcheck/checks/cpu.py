"""Is the processor set up as it should be?"""

from __future__ import annotations
