"""Each folder of core/, fs/ and tools/ includes only itself and those before it in its list, and no two files include
each other. A new folder gets its place here, and its line in the README.md beside it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ORDER = {
    "core": ("base", "format", "tensor", "storage", "journal", "archive", "commit", "model"),
    "fs": ("base", "tree", "read", "write", "model", "kernel", "follow", "mount"),
    "tools": ("text", "target", "device", "upload", "compare", "sync", "serve", "libstfs", "cli"),
}
MAY_INCLUDE = {"core": ("core",), "fs": ("core", "fs"), "tools": ("core", "tools")}


def sources(part):
    return sorted(file for file in (ROOT / part).rglob("*") if file.suffix in (".h", ".cc", ".cu"))


def includes(file):
    return [Path(name) for name in re.findall(r'^#include "(.+)"', file.read_text(), re.M)]


@pytest.mark.parametrize("part", ORDER)
def test_each_source_lies_in_a_folder_of_the_list(part):
    strays = [str(file) for file in sources(part) if file.relative_to(ROOT / part).parts[0] not in ORDER[part]]
    assert not strays
    assert {folder.name for folder in (ROOT / part).iterdir() if folder.is_dir()} == set(ORDER[part])
    text = (ROOT / part / "README.md").read_text()
    places = [text.find(f"| `{folder}/` |") for folder in ORDER[part]]
    assert -1 not in places and places == sorted(places), "README.md names the folders in another order"


@pytest.mark.parametrize("part", ORDER)
def test_no_folder_includes_one_that_comes_after_it(part):
    wrong = []
    for file in sources(part):
        own = ORDER[part].index(file.relative_to(ROOT / part).parts[0])
        for header in includes(file):
            if header.parts[0] not in MAY_INCLUDE[part]:
                wrong.append(f"{file.relative_to(ROOT)} includes {header}")
            elif header.parts[0] == part and ORDER[part].index(header.parts[1]) > own:
                wrong.append(f"{file.relative_to(ROOT)} includes {header}, which comes later")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("part", ORDER)
def test_no_headers_include_each_other(part):
    graph = {file.relative_to(ROOT): includes(file) for file in sources(part) if file.suffix == ".h"}
    done = set()

    def visit(header, way):
        assert header not in way, " -> ".join(map(str, (*way, header)))
        if header in done:
            return
        for other in graph.get(header, ()):
            visit(other, (*way, header))
        done.add(header)

    for header in graph:
        visit(header, ())
