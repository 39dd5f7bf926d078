"""Every setting by its name. Adding a setting is one file and one line here."""

from __future__ import annotations

from . import kernel_arguments
from .engine import Setting

SETTINGS: dict[str, Setting] = {one.name: one for one in (kernel_arguments.SETTING,)}
