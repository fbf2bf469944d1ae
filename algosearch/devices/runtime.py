"""Where the files of this user's running processes are: the locks of lanes.

Nothing in there outlives its use, and nothing in there is read: a file's name and who holds its lock is all that it
says. All the same another user must not be able to put something else in its place.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_NAME: Final = "algosearch"
_OWN: Final = 0o700


def runtime_directory(environ: Mapping[str, str] | None = None) -> Path:
    """A directory that is this user's alone, made if it is not there: in `XDG_RUNTIME_DIR`, else among the temporary
    files.

    Raises:
        OSError: it cannot be made, or what has its name is not safe: a link, somebody else's, or open to others.
    """
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(base) and _is_own(base):
        directory = Path(base) / _NAME
    else:
        directory = Path(tempfile.gettempdir()) / f"{_NAME}-{os.geteuid()}"
    directory.mkdir(mode=_OWN, exist_ok=True)
    if not _is_own(directory):
        raise PermissionError(f"{directory} is not a directory of this user's alone (mode 0700)")
    return directory


def _is_own(path: str | Path) -> bool:
    """Whether it is a directory, no link, of this user, that nobody else may write to or look into."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
