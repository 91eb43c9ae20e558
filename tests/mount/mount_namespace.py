# Mount namespaces of tests. A new namespace has a copy of every existing mount, and a file system lives as long as its last
# copy. A file system that another test unmounts would still run in the copy, and write to an image that is already used again.
from pathlib import Path

# Unmounts the copies, except for mounts above the working directory.
_FORGET_COPIES = """
while read -r from at type rest; do
  case "$type $from" in fuse*|*" /dev/loop"*) case "$PWD/" in "$at"/*) ;; *) umount -l "$(printf %b "$at")" ;; esac ;; esac
done </proc/self/mounts
"""


def in_namespace(before, *options):
    """The start of a command line: the rest runs in a new mount namespace, after the shell command `before`."""
    return ["unshare", "--mount", "--propagation", "private", *options, "sh", "-c",
            f'{_FORGET_COPIES}{before} && exec "$@"', "sh"]


def holders(mount_point):
    """Processes in whose mount namespaces there is a mount of this name."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            mounts = (process / "mounts").read_text()
            name = (process / "comm").read_text().strip()
        except OSError:  # the process has ended, or may not be inspected
            continue
        if any(line.split(" ")[1] == str(mount_point) for line in mounts.split("\n") if line):
            found.append(f"{process.name} ({name})")
    return found
