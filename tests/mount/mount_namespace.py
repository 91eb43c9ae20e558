# Mount namespaces of tests. A new one has a copy of every mount there is, and a file system lives as long as its
# last copy: one that another test unmounts meanwhile would go on, and write to its image while that is used anew.
from pathlib import Path

# But what lies above the working directory is needed.
_FORGET_COPIES = """
while read -r from at type rest; do
  case "$type $from" in fuse*|*" /dev/loop"*) case "$PWD/" in "$at"/*) ;; *) umount -l "$at" ;; esac ;; esac
done </proc/self/mounts
"""


def in_namespace(before, *options):
    """The beginning of a command: the rest runs in a mount namespace of its own, after the shell command `before`."""
    return ["unshare", "--mount", "--propagation", "private", *options, "sh", "-c",
            f'{_FORGET_COPIES}{before} && exec "$@"', "sh"]


def holders(mount_point):
    """Processes in whose mount namespaces there is a mount of this name."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            mounts = (process / "mounts").read_text()
            name = (process / "comm").read_text().strip()
        except OSError:  # it ended, or is nobody's business of ours
            continue
        if any(line.split(" ")[1] == str(mount_point) for line in mounts.split("\n") if line):
            found.append(f"{process.name} ({name})")
    return found
