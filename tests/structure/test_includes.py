"""Each folder of core/, fs/ and tools/ includes only itself and those before it in its list, and no two files include
each other. A new folder gets its place here, and its line in the README.md beside it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ORDER = {
    "core": ("base", "format", "tensor", "storage", "remote", "journal", "archive", "commit", "model"),
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


# Every source can use the precompiled headers (STFS_COMMON_HEADERS of CMakeLists.txt) without an include, unless a compiler's
# cache turns them off. So each file includes the headers that it uses, or a header of ours that includes them. Maps each
# header to the names that it declares.
DECLARES = {
    "algorithm": r"std::(?:ranges::)?(?:all_of|any_of|none_of|find|find_if|find_if_not|count|count_if|copy|copy_if|copy_n|fill|fill_n"
                 r"|transform|sort|stable_sort|min_element|max_element|min|max|clamp|lower_bound|upper_bound|equal|reverse|unique"
                 r"|remove_if|partition|is_sorted|binary_search|for_each|equal_range|mismatch|nth_element|rotate|search|replace)\s*\(",
    "atomic": r"std::atomic\b",
    "chrono": r"std::chrono::",
    "filesystem": r"std::filesystem::",
    "functional": r"std::(?:function|hash|less|greater|invoke|bind_front)\b",
    "map": r"std::(?:multi)?map\b",
    "memory": r"std::(?:unique_ptr|shared_ptr|weak_ptr|make_unique|make_shared|enable_shared_from_this|addressof)\b",
    "mutex": r"std::(?:mutex|recursive_mutex|lock_guard|unique_lock|scoped_lock|once_flag|call_once|adopt_lock|defer_lock)\b",
    "optional": r"std::(?:optional|nullopt|make_optional)\b",
    "span": r"std::(?:span|as_bytes|as_writable_bytes)\b",
    "string": r"std::(?:string|to_string|stoull|stoul|stoi|getline)\b",
    "vector": r"std::vector\b",
    "fmt/format.h": r"fmt::(?:format|format_to|to_string|format_string|memory_buffer)\b",
    "tl/expected.hpp": r"tl::(?:expected|unexpected|make_unexpected)\b",
}
# These headers include others: either the standard says so, or their declarations cannot be used without the others.
BRINGS = {"catch2/catch.hpp": {"string"}, "filesystem": {"string"}, "fmt/ostream.h": {"fmt/format.h"}, "fmt/ranges.h": {"fmt/format.h"},
          "nlohmann/json.hpp": {"algorithm", "functional", "map", "memory", "string", "vector"}, "CLI/CLI.hpp": {"functional", "memory", "string", "vector"},
          "future": {"memory"}, "ostream": {"string"}, "sstream": {"string"}, "iostream": {"string"}, "regex": {"string"},
          "condition_variable": {"mutex"}, "shared_mutex": {"chrono"}, "thread": {"chrono"}, "unordered_map": set(), "queue": {"vector"}}
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"](.+)[">]', re.M)


def test_the_list_has_each_header_that_the_build_precompiles():
    listed = re.search(r"set\(STFS_COMMON_HEADERS([^)]*)\)", (ROOT / "CMakeLists.txt").read_text())[1]
    assert set(re.findall(r"<(.+?)>", listed)) == set(DECLARES)


def test_each_file_includes_what_it_uses_of_the_precompiled_headers():
    files = [file for part in ("core", "fs", "tools", "tests", "packaging") for file in (ROOT / part).rglob("*") if file.suffix in (".h", ".cc")]
    texts = {file: file.read_text() for file in files}
    places = (ROOT, ROOT / "tests", ROOT / "tools" / "libstfs")
    reached = {}

    def headers_of(file):
        """The headers of the system that a file gets."""
        if file not in reached:
            reached[file] = found = set()
            for name in INCLUDE.findall(texts[file]):
                ours = next((place / name for place in (file.parent, *places) if place / name in texts), None)
                found |= headers_of(ours) if ours else {name, *BRINGS.get(name, ())}
        return reached[file]

    wrong = []
    for file in files:
        code = re.sub(r'//.*|"(?:\\.|[^"\\\n])*"', "", texts[file])
        wrong += [f"{file.relative_to(ROOT)} needs <{header}>" for header, names in DECLARES.items()
                  if re.search(names, code) and header not in headers_of(file)]
    assert not wrong, "\n".join(wrong)
