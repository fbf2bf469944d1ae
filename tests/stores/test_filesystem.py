"""Which file system a path lies on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from algosearch.stores.filesystem import FileSystem, file_system_of

MOUNTS = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
23 22 0:21 / /proc rw - proc proc rw
30 22 0:40 / /home rw,relatime shared:5 - nfs4 server:/home rw,vers=4.2
31 30 0:41 / /home/a\040b rw - tmpfs tmpfs rw
32 30 0:42 / /home/me/scratch rw - xfs /dev/sdb rw
33 22 0:43 / /home/me/scratch/deep rw - lustre l@tcp:/fs rw
34 22 0:44 / /twice rw - ext4 /dev/sdc rw
35 22 0:45 / /twice rw - cifs //server/share rw
nonsense
36 22 - only four fields
"""


@pytest.mark.parametrize(
    ("path", "kind", "mounted_at", "network"),
    [
        ("/", "ext4", "/", False),
        ("/var/cache/store", "ext4", "/", False),
        ("/home/me/.cache", "nfs4", "/home", True),
        ("/homely", "ext4", "/", False),
        ("/home/a b/c", "tmpfs", "/home/a b", False),
        ("/home/me/scratch", "xfs", "/home/me/scratch", False),
        ("/home/me/scratchy", "nfs4", "/home", True),
        ("/home/me/scratch/deep/er", "lustre", "/home/me/scratch/deep", True),
        ("/twice/x", "cifs", "/twice", True),
    ],
)
def test_the_longest_mount_wins(path: str, kind: str, mounted_at: str, network: bool) -> None:
    found = file_system_of(Path(path), mounts=MOUNTS)
    assert found == FileSystem(kind=kind, mounted_at=mounted_at)
    assert found.network is network


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/home/me")
    found = file_system_of(tmp_path / "link" / "store", mounts=MOUNTS)
    assert found is not None
    assert found.kind == "nfs4"


def test_where_nothing_is_known() -> None:
    assert file_system_of(Path("/x"), mounts="") is None
    assert file_system_of(Path("a\0b"), mounts=MOUNTS) is None


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says what is mounted where")
def test_what_this_system_says(tmp_path: Path) -> None:
    found = file_system_of(tmp_path / "not" / "there")
    assert found is not None
    assert str(tmp_path.resolve()).startswith(found.mounted_at)
    assert file_system_of(Path("/proc/self")) == FileSystem(kind="proc", mounted_at="/proc")
