# Users with names and groups for one command: a passwd and a group file in a separate mount namespace. The machine's files are
# not changed.
import subprocess
from pathlib import Path

import mount_namespace


class UserNames:
    """Writes the two files. `before` begins a command that sees them."""

    def __init__(self, directory, members):
        """members: {gid: [uid, ...]}"""
        passwd, group = Path(directory) / "passwd", Path(directory) / "group"
        users = sorted({uid for uids in members.values() for uid in uids})
        passwd.write_text(Path("/etc/passwd").read_text() +
                          "".join(f"stfs{uid}:x:{uid}:{uid}::/nonexistent:/bin/false\n" for uid in users))
        group.write_text(Path("/etc/group").read_text() +
                         "".join(f"stfs{gid}:x:{gid}:{','.join(f'stfs{uid}' for uid in uids)}\n"
                                 for gid, uids in members.items()))
        for file in (passwd, group):
            file.chmod(0o644)
        self.before = mount_namespace.in_namespace(
            f"mount --bind '{passwd}' /etc/passwd && mount --bind '{group}' /etc/group")

    def why_unavailable(self):
        """Some containers allow no namespace."""
        probe = subprocess.run([*self.before, "true"], capture_output=True, text=True)
        return probe.stderr.strip() if probe.returncode != 0 else None
