"""The probe: which folders can hold a lease."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from stateside.core.errors import LeaseInvalid, SettingInvalid
from stateside.leadership import check_folder
from stateside.leadership.gate import file_system
from tests.disks import mounted

MOUNTS = """\
27 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 27 0:40 / /shared rw,relatime shared:1 - nfs4 server:/x rw
31 30 0:41 / /shared/scratch\\040space rw,relatime - tmpfs tmpfs rw
32 27 0:42 / /mnt rw - ext4 /dev/sdb rw
33 27 0:43 / /mnt rw - ceph mon:/ rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/data/app", "ext4"),
        ("/shared", "nfs4"),
        ("/shared/app", "nfs4"),
        ("/sharedother", "ext4"),
        ("/shared/scratch space/app", "tmpfs"),
        ("/mnt/app", "ceph"),
    ],
)
def test_a_folder_is_on_the_deepest_and_last_mounted_file_system(tmp_path: Path, folder: str, kind: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    found = file_system(Path(folder), mounts)
    assert found is not None and found.kind == kind


NFS = "rw,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,{}soft,proto=tcp,timeo=50,retrans=1,sec=sys,{}addr=10.0.0.2"
AT_ONCE = "acregmin=0,acregmax=0,acdirmin=0,acdirmax=0,"


@pytest.mark.parametrize(
    ("kind", "attributes", "names", "missing"),
    [
        ("nfs4", "", "", "acdirmax=0, acdirmin=0, acregmax=0, acregmin=0, lookupcache=none"),
        ("nfs", AT_ONCE, "", "lookupcache=none"),
        ("nfs", AT_ONCE, "lookupcache=pos,", "lookupcache=none"),
        ("nfs4", "acregmin=0,acregmax=0,", "lookupcache=none,", "acdirmax=0, acdirmin=0"),
        ("nfs4", AT_ONCE, "lookupcache=none,", None),
        ("nfs", AT_ONCE + "noac,", "lookupcache=none,", None),
        ("nfs", "noac,", "lookupcache=none,", None),
        ("nfs", "noac,", "", "lookupcache=none"),
        ("ceph", "", "", None),
    ],
)
def test_nfs_is_refused_unless_it_is_mounted_so_that_all_see_a_rename_at_once(
    tmp_path: Path, kind: str, attributes: str, names: str, missing: str | None
) -> None:
    mounts, folder = tmp_path / "mountinfo", tmp_path / "application"
    options = NFS.format(attributes, names)
    mounts.write_text(f"{MOUNTS}34 27 0:44 / {tmp_path} rw,relatime shared:1 - {kind} server:/x {options}\n")
    if missing is None:
        check_folder(folder, "shared", mounts)
    else:
        with pytest.raises(SettingInvalid, match=f"on NFS, mounted without {missing}: .*lookupcache=none,actimeo=0"):
            check_folder(folder, "shared", mounts)
    check_folder(folder, "machine", mounts)


def test_a_local_disk_is_refused_unless_all_standbys_are_on_this_machine(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk") as disk:
        with pytest.raises(SettingInvalid, match=r"on a local disk \(tmpfs\).*--standby-scope machine"):
            check_folder(disk / "application", "shared")
        check_folder(disk / "application", "machine")
        assert not list((disk / "application" / "lease").iterdir())


def test_a_folder_without_the_right_to_write_is_told(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk") as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(LeaseInvalid, match=r"cannot hold a lease: .*Read-only file system.*Mend that"):
            check_folder(disk, "machine")
