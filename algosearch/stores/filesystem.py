"""Which file system a directory lies on, and whether that is one over a network.

SQLite's log needs memory that all who have the file open share, which no network file system gives to several hosts.
Linux alone says what is mounted where; elsewhere nothing is known.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import msgspec

_MOUNTS: Final = "/proc/self/mountinfo"
_NETWORK: Final[frozenset[str]] = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "beegfs", "gpfs", "panfs"),
        *("pvfs2", "orangefs", "ncpfs", "coda", "davfs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph"),
        *("fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.davfs2", "fuse.moosefs", "fuse.juicefs"),
    }
)
"""Not 9p and virtiofs: by them a virtual machine or a sandbox has its own host's disk."""
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


class FileSystem(msgspec.Struct, frozen=True, kw_only=True):
    """Where a directory lies."""

    kind: str
    """As the system names it: `ext4`, `nfs4`, `tmpfs`."""
    mounted_at: str

    @property
    def network(self) -> bool:
        """Whether other hosts may have it mounted as well."""
        return self.kind in _NETWORK


def file_system_of(path: Path, *, mounts: str | None = None) -> FileSystem | None:
    """The file system of a path, of which the end need not exist; None if nothing is known. Follows links.

    Args:
        mounts: what the system says, in the form of `/proc/self/mountinfo`; left out, that file.
    """
    try:
        text = Path(_MOUNTS).read_text(encoding="utf-8", errors="surrogateescape") if mounts is None else mounts
        real = os.path.realpath(path)
    except (OSError, ValueError):
        return None
    found: FileSystem | None = None
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")[0]
        if len(fields) < 5 or not kind:
            continue
        mounted_at = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4])
        # The longest wins, and of several mounts on one place the last one, which hides the others.
        if _is_within(real, mounted_at) and (found is None or len(mounted_at) >= len(found.mounted_at)):
            found = FileSystem(kind=kind, mounted_at=mounted_at)
    return found


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
