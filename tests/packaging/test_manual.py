# The manual pages: one for each verb of stfs, with the same sections, and references that lead to a page and a section.
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("STFS_BUILD_DIR", REPOSITORY / "build" / "release")).resolve()
BUILT = pytest.mark.skipif(not (BUILD / "stfs").exists(), reason=f"{BUILD} is not built")
PAGES = sorted((REPOSITORY / "packaging" / "man").glob("*.[0-9]"))
VERB_PAGES = [page for page in PAGES if page.name.startswith("stfs-")]
SECTIONS = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "SEE ALSO"]  # of a verb's page, among others

# Files that refer to pages: the text for users, and the help and comments of the sources.
CITING = [*PAGES, REPOSITORY / "README.md",
          *(path for part, pattern in (("packaging", "*"), ("core", "*"), ("fs", "*"), ("tools", "*"))
            for path in sorted((REPOSITORY / part).rglob(pattern))
            if path.is_file() and path.suffix in {".md", ".in", ".cc", ".h", ".c", ".conf", ".cu"} or path.name == "fstab")]

REFERENCE = r"(?<![\w.-])((?:mount\.)?safetensorsfs(?:-[a-z]+)*|(?:lib)?stfs(?:-[a-z]+)*)\(([1-9])\)"
SECTION_REFERENCE = r"\b([A-Z]{3,}(?: [A-Z]{2,})*(?: and [A-Z]{3,})*) in " + REFERENCE


def plain(page):
    """Returns the text of a page, with its lines joined: the fonts, the escapes and the macros of fonts are removed."""
    text = page.read_text()
    if re.fullmatch(r"\.[1-9]", page.suffix):
        text = re.sub(r"(?m)^\.SH .*$", ". ", text)
        text = re.sub(r'(?m)^\.(?:BR|RB|IR|RI|BI|IB|B|I) (.*)$',
                      lambda found: "".join(re.findall(r'"[^"]*"|\S+', found[1])).replace('"', ""), text)
        text = re.sub(r"\\f.", "", text).replace("\\-", "-").replace("\\~", " ")
    return re.sub(r'[\s"]+', " ", re.sub(r"(?m)^\s*(?://+|\*|#)", " ", text))


def sections_of(page):
    return [title.strip('"') for title in re.findall(r"(?m)^\.SH (.+)$", page.read_text())]


def page_of(name, section):
    return REPOSITORY / "packaging" / "man" / f"{name}.{section}"


def verbs():
    shown = subprocess.run([BUILD / "stfs", "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
    return [line.split()[0] for line in shown.split("\nVerbs:\n")[1].split("\n\n")[0].splitlines()]


def test_there_are_pages_for_people_who_mount_and_for_people_who_must_know():
    assert {"libstfs.3", "mount.safetensorsfs.8", "safetensorsfs-semantics.7", "safetensorsfs.8", "stfs.1",
            "stfs-put.1"} <= {page.name for page in PAGES}


@BUILT
def test_each_verb_has_a_page_and_each_page_a_verb():
    assert sorted(page.name for page in VERB_PAGES) == sorted(f"stfs-{verb}.1" for verb in verbs())


@BUILT
def test_help_of_a_verb_is_the_verbs_help():
    for verb in verbs():
        asked, shown = (subprocess.run([BUILD / "stfs", *words], capture_output=True, text=True, timeout=60, check=True).stdout
                        for words in (["help", verb], [verb, "--help"]))
        assert asked == shown and shown.startswith(shown.splitlines()[0] + "\n\nUsage: stfs " + verb)


@pytest.mark.parametrize("page", VERB_PAGES, ids=lambda page: page.name)
def test_a_verbs_page_has_all_sections(page):
    found = sections_of(page)
    assert [title for title in found if title in SECTIONS] == SECTIONS
    text, verb = page.read_text(), page.stem.removeprefix("stfs-")
    assert f"\n.TH STFS\\-{verb.upper()} 1 " in text
    marked = re.findall(r"BEGIN generated: (.+)\n(?:.*\n)+?\.\\\" END generated\n", text)
    assert marked == [f"{part} of {verb}" for part in ("head", "options", "examples")]
    # Without an example, the marks are empty.
    assert re.search(rf"(?m)^.*\bstfs {verb}\b", text.split("\n.SH EXAMPLES\n")[1])
    assert f"\n.SH NAME\nstfs\\-{verb} \\- " in text


def references(text):
    return {(name, section) for name, section in re.findall(REFERENCE, text)}


def test_every_reference_to_a_page_of_ours_leads_to_it():
    wrong = [f"{path.relative_to(REPOSITORY)}: {name}({section})" for path in CITING
             for name, section in sorted(references(plain(path))) if not page_of(name, section).is_file()]
    assert wrong == []
    assert ("stfs-rm", "1") in references(plain(page_of("stfs-mv", 1)))  # else the pattern finds nothing
    assert ("stfs-pull", "1") in references(plain(REPOSITORY / "tools" / "cli" / "pull.cc"))


def test_every_reference_to_a_section_leads_to_it():
    wrong, found = [], 0
    for path in CITING:
        for titles, name, section in re.findall(SECTION_REFERENCE, plain(path)):
            found += 1
            for title in titles.split(" and "):
                if title not in sections_of(page_of(name, section)):
                    wrong.append(f"{path.relative_to(REPOSITORY)}: {title} in {name}({section})")
    assert wrong == []
    assert found > 8


def test_no_page_is_without_a_reference():
    """stfs(1) leads to the pages of the verbs, and each page leads to another one."""
    listed = references(plain(page_of("stfs", 1)))
    for page in VERB_PAGES:
        assert (page.stem, "1") in listed
        assert ("stfs", "1") in references(plain(page))
    assert ("safetensorsfs-semantics", "7") in references(plain(page_of("safetensorsfs", 8)))
    assert ("safetensorsfs", "8") in references(plain(page_of("safetensorsfs-semantics", 7)))


def test_the_page_for_people_who_mount_is_short():
    assert len(page_of("safetensorsfs", 8).read_text().split()) <= 2800


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_no_warnings(page):
    result = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page], text=True,
                            cwd=page.parents[1], capture_output=True, timeout=60,
                            env={**os.environ, "MANROFFSEQ": "t", "LC_ALL": "C.UTF-8", "MANWIDTH": "80"})
    if page.read_text().startswith(".so "):
        assert (page.parent / Path(page.read_text().split()[1]).name).is_file()
        return
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")  # lexgrog is a part of it
@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "mount.safetensorsfs.8"], ids=lambda page: page.name)
def test_apropos_finds_a_page_by_its_name(page):
    shown = subprocess.run(["lexgrog", page], capture_output=True, text=True, timeout=60).stdout
    assert f'"{page.stem} - ' in shown
