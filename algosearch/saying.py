"""How values are shown in messages: never at length, never with a password."""

from __future__ import annotations

from typing import Final

_LONGEST: Final = 200
"""Characters of a value that a message shows."""


def without_secrets(location: str) -> str:
    """What was written as a location, for messages and logs: without the user and password that a URL may have.

    They may have characters in them that belong into no URL, its slashes may be missing, and there may be a blank or a
    quotation mark before it: so everything goes that stands between its scheme and the last `@`.
    """
    scheme, mark, rest = location.partition(":")
    if mark and "@" in rest and scheme.isalpha():
        return f"{scheme}:{'//' * rest.startswith('//')}{rest.rpartition('@')[2]}"
    before, mark, rest = location.partition("://")
    return f"{before}{mark}{rest.rpartition('@')[2]}" if mark else location


def shown(value: object) -> str:
    """`value` for a message: cut short, and never itself an error, whatever somebody passed in."""
    try:
        text = repr(without_secrets(value) if type(value) is str else value)
    except Exception as error:  # an int of 5,000 digits has no repr, and a stranger's class may do anything
        text = f"<{type(value).__name__} without a repr: {type(error).__name__}>"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
