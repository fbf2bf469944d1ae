"""Adapters to the libraries that do the work. Blocking calls only: no `await` in this room or below it."""

from __future__ import annotations

from algosearch.backends.base import Backend, Device, Recipe, Session

__all__ = ("Backend", "Session", "Device", "Recipe")
