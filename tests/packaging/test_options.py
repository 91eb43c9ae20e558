# --help, the completions and the manuals have the options of the definitions. No page names another option.
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("STFS_BUILD_DIR", REPOSITORY / "build" / "release")).resolve()
PACKAGING = REPOSITORY / "packaging"
pytestmark = pytest.mark.skipif(not (BUILD / "stfs").exists(), reason=f"{BUILD} is not built")

# The pages with examples.
DOCUMENTS = ["README.md", *sorted(f"packaging/doc/{path.name}" for path in (PACKAGING / "doc").glob("*.md")),
             *sorted(f"packaging/man/{path.name}" for path in (PACKAGING / "man").glob("s*.[0-9]"))]

# Options for mount(8) or the kernel, the same for every file system.
GENERAL = {"noexec", "noatime", "nosuid", "nodev", "rw"}


def help_of(*command):
    result = subprocess.run([BUILD / command[0], *command[1:], "--help"], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def verbs():
    listed = help_of("stfs").split("\nVerbs:\n")[1].split("\n\n")[0]
    return [line.split()[0] for line in listed.splitlines()]


VERBS = verbs() if (BUILD / "stfs").exists() else []
COMMANDS = [["safetensorsfs"], ["stfs"], *(["stfs", verb] for verb in VERBS)]


def options_in(text):
    """Returns the options below "Options:" of a help text, such as {"-r", "--reverse"}."""
    listed = text.split("\nOptions:\n")[1].split("\n\n")[0]
    return {name for line in listed.splitlines()
            if (found := re.match(r"  (-{1,2}[\w-]+)(?:, ?(-{1,2}[\w-]+))?", line)) for name in found.groups() if name}


def mount_options_of_help():
    """Returns the names of the mount options, each with its possible values: {"layout": {"flat", "tree"}, "ro": set()}."""
    listed = help_of("safetensorsfs").split("\nOptions for -o, separated by commas:\n")[1].split("\n\n")[0]
    options = {}
    for line in listed.splitlines():
        found = re.match(r"  (\S.*?)(?:  |$)", line)
        if not found or "..." in found[1]:
            continue
        for part in found[1].split(", "):
            name, _, values = part.partition("=")
            options[name] = set() if values.isupper() else set(filter(None, values.split("|")))
    assert {"ro", "layout", "threads"} <= set(options)
    return options


def plain(troff):
    """Returns a manual without its fonts and escapes."""
    text = re.sub(r"\\f.", "", troff)
    return text.replace("\\-", "-").replace("\\~", " ").replace("\\|", "")


def tags(section):
    """Returns the options that have a separate paragraph: they are in the line after a .TP."""
    lines = [after for before, after in zip(section.splitlines(), section.splitlines()[1:])
             if re.match(r"\.T[PQ]\b", before)]
    return {name for line in lines for name in re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", line)}


@pytest.mark.parametrize("command", COMMANDS, ids="-".join)
def test_help_is_whole_lines_that_fit(command):
    text = help_of(*command)
    assert text.endswith("\n") and not text.endswith("\n\n")
    assert [line for line in text.splitlines() if len(line) > 112 or line != line.rstrip()] == []


def generate(packaging, *arguments):
    return subprocess.run([packaging / "generate", "--build-dir", BUILD, *arguments], capture_output=True, text=True,
                          timeout=60)


def test_the_completions_and_the_manuals_are_generated_from_the_definitions():
    result = generate(PACKAGING, "--check")
    assert (result.returncode, result.stderr) == (0, "")


def test_generate_names_a_file_that_differs_and_writes_it(tmp_path):
    copy = tmp_path / "packaging"
    shutil.copytree(PACKAGING, copy)
    page = copy / "man" / "stfs-ls.1"
    written = page.read_text()
    page.write_text(written.replace("\n\\fB\\-\\-names\\fP\n", "\n\\fB\\-\\-nams\\fP\n"))
    assert page.read_text() != written
    result = generate(copy, "--check")
    assert (result.returncode, result.stderr) == (
        1, "packaging/man/stfs-ls.1: differs from the definitions: run packaging/generate\n")
    assert (generate(copy).returncode, page.read_text()) == (0, written)


def test_generate_names_a_usage_that_the_definitions_do_not_have(tmp_path):
    copy = tmp_path / "packaging"
    shutil.copytree(PACKAGING, copy)
    script = (copy / "generate").read_text()
    (copy / "generate").write_text(script.replace('= definition["usages"]', '= [each.replace("FROM TO", "FROM INTO") for each in definition["usages"]]'))
    result = generate(copy, "--check")
    assert (result.returncode, result.stderr) == (
        1, "generate: packaging/man/stfs-mv.1: stfs mv: the definitions have no INTO: correct the usage\n")


def test_generate_names_a_section_that_is_missing(tmp_path):
    copy = tmp_path / "packaging"
    shutil.copytree(PACKAGING, copy)
    page = copy / "man" / "stfs-cat.1"
    page.write_text(page.read_text().replace("generated: options of cat\n", "generated: options of dog\n"))
    result = generate(copy)
    assert (result.returncode, result.stderr) == (
        1, 'generate: packaging/man/stfs-cat.1: no section "BEGIN generated: options of cat"\n')


def test_a_letter_means_the_same_option_of_every_verb():
    meanings = {}
    for verb in VERBS:
        listed = help_of("stfs", verb).split("\nOptions:\n")[1].split("\n\n")[0]
        for letter, name in re.findall(r"^  (-\w), ?(--[\w-]+)", listed, re.M):
            meanings.setdefault(letter, set()).add(name)
        assert ("--dry-run" in listed) == ("-n," in listed), verb
    assert {letter: names for letter, names in meanings.items() if len(names) > 1} == {}
    assert meanings["-n"] == {"--dry-run"}


def test_options_of_safetensorsfs_are_in_its_manual_and_completions():
    in_help = options_in(help_of("safetensorsfs"))
    assert {"-o", "-f", "-d", "-h", "--help", "-V", "--version"} == in_help
    manual = plain((PACKAGING / "man/safetensorsfs.8").read_text())
    section = manual.split("\n.SH OPTIONS\n")[1].split("\n.SS Mount options\n")[0]
    assert tags(section) == in_help
    bash = (PACKAGING / "completions/safetensorsfs.bash").read_text()
    assert set(re.search(r'compgen -W "(-o .*?)"', bash)[1].split()) == in_help
    zsh = (PACKAGING / "completions/_safetensorsfs").read_text().split("_arguments ")[1]
    assert set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", re.sub(r"\[[^]]*\]|'\(.*?\)'|_files -/", "", zsh))) == in_help
    fish = re.sub(r"(?m)^set .*$", "", (PACKAGING / "completions/safetensorsfs.fish").read_text())
    assert {*(f"-{name}" for name in re.findall(r" -s (\w)", fish)),
            *(f"--{name}" for name in re.findall(r" -l ([\w-]+)", fish))} == in_help


def documented(cells):
    """Returns mount options and their values, as mount_options_of_help() does, from cells such as "layout=flat" and
    "uid=N, gid=N"."""
    options = {}
    for cell in cells:
        for part in cell.split(", "):
            name, _, value = part.partition("=")
            options.setdefault(name, set()).update(filter(None, [] if value.isupper() else [value]))
    return {name: values for name, values in options.items() if name not in GENERAL and name != "..."}


# In stfs-slice(1), -o names a file.
@pytest.mark.parametrize("document", [page for page in DOCUMENTS if not page.endswith("/stfs-slice.1")])
def test_every_mount_option_that_a_page_uses_exists(document):
    expected = mount_options_of_help()
    text = plain((REPOSITORY / document).read_text())
    used = re.findall(r"(?<![\w-])-o ([a-z_]+(?:=\w+)?(?:,[a-z_]+(?:=\w+)?)*)(?![\w.])", text)
    for name, values in documented(option for options in used for option in options.split(",")).items():
        assert name in expected and (not expected[name] or values <= expected[name]), f"-o {name} {values or ''}"
    # Options with a value in the running text, such as `durability=process`.
    for name, value in re.findall(r"(?<![\w=-])(layout|durability|io)=([a-z]+)", text):
        assert value in expected[name], f"{name}={value}"


def used_options(text):
    """Yields (verb, option) for every command in a text."""
    for line in text.splitlines():
        line = re.split(r"\s{3,}#|#\s", line)[0]
        for verb, rest in re.findall(r"(?<![\w/.-])(?:build/release/)?stfs (\w+)((?: [^|&;<>`]*)?)", line):
            for option in re.findall(r"(?<= )--?[a-zA-Z][\w-]*", rest):
                yield verb, option


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_option_in_an_example_exists(document):
    known = {verb: options_in(help_of("stfs", verb)) for verb in VERBS}
    text = plain((REPOSITORY / document).read_text())
    used = [(verb, option) for verb, option in used_options(text) if verb in known]
    for verb, option in used:
        assert option in known[verb], f"stfs {verb} {option}"
    assert len(used) > {"README.md": 2, "packaging/doc/serve.md": 2, "packaging/man/stfs-repack.1": 5}.get(document, -1)


# The meaning of a short option in all verbs. -o of slice is GNU's --output.
LETTERS = {"-b": "--bytes", "-c": "--create", "-d": "--device", "-f": "--force", "-h": "--help", "-n": "--dry-run", "-o": "--output",
           "-q": "--brief", "-r": "--reverse"}


@pytest.mark.parametrize("verb", VERBS)
def test_a_short_option_means_the_same_in_every_verb(verb):
    pairs = re.findall(r"(?m)^  (-\w), ?(--[\w-]+)", help_of("stfs", verb))
    assert pairs and all(LETTERS.get(short) == long for short, long in pairs), pairs


@pytest.mark.parametrize("verb", VERBS)
def test_a_usage_says_what_is_required(verb):
    """Each line of the usage has every argument that is not in brackets, and the arguments without it are refused."""
    usages = [line.split("stfs ", 1)[1] for line in help_of("stfs", verb).split("\nArguments:")[0].split("\nOptions:")[0].splitlines()
              if re.match(r"(Usage:|      ) stfs ", line)]
    assert usages and all(usage.split()[0] == verb for usage in usages)
    needs_nothing = any(not re.sub(r"\[[^]]*\]", "", usage).split()[1:] for usage in usages)
    result = subprocess.run([BUILD / "stfs", verb], capture_output=True, text=True, timeout=60)
    assert (result.returncode == 2) == (not needs_nothing), (usages, result.stderr)
