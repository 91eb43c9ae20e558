"""Prose is read once: comments and pages have few sentences of the kinds at which readers stop. A hit is a hint: rewrite the
whole sentence, and do not dodge the pattern."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_PER_10_000_WORDS = 12
PATTERNS = {
    "headless 'who'": r"(?:^|[.;:,(]\s+)[Ww]ho(?:ever)?\s+(?!is\b.*\?)[a-z]+|\b(?:for|by|of|to|that) who(?:ever)?\b|\b[Ww]hoever\b",
    "headless 'what'": r"(?:^|[.;:(]\s+)What(?:ever)?\s(?![^.?!]*\?)|\b(?:of|for|by|to|from|with|in|into|and|as|keeps|holds|is|are|has|says"
    r"|lists|on|behind|after|before|like) what(?:ever)?\s(?!to\b)",
    "'of before', 'of its own'": r"\bof (?:before|after|theirs|its own|their own)\b|\bthe ones? of\b|\b(?:that|those) of\b|\bthose that\b"
    r"|\bthe other one\b",
    "'tells', 'goes', 'lies'": r"\btells? (?:that|whether|which|it|how|of)\b|\blooks? whether\b|\bcounts? (?:as|for)\b"
    r"|\bgoes? (?:by|through|on|with|along)\b|\bcomes? (?:to|of|after|first|with)\b|\bspeaks? for\b|\bstands? (?:for|beside|in)\b"
    r"|\blies?\b(?! to\b)",
    "a picture": r"\b(?:anew|mended|meanwhile|besides|somebody|somebody's|nobody)\b|\b(?:has|have|is|are) gone\b|\bin the end\b|\bfor good\b"
    r"|\bby hand\b|\bat heart\b|\bbelongs? to\b",
    "inversion": r"(?:^|[.;]\s+)(?:Nor|Neither|So|Such|Else|Only then|Not until|Thus)\s+(?:is|are|does|do|did|has|have|can|it|a|the|an|one"
    r"|they)\b|\bno more\b|\bas well$|, too\.|, too$|\bso (?:is|are|does|do|has) (?:an?|the|it|one)\b",
    "pronoun without a noun": r"(?:^|[.;]\s+)(?:It|They|Those|These|That|Both|None|Others|Either)\s+(?:is|are|has|have|does|do|may|can|must"
    r"|goes|go|ends|end|need|needs)\b",
    "clause before its noun": r"(?:^|[.;]\s+)(?:Where|Whether|How|Why)\s+[^.?!]*[a-z] (?:is|are|has|have|says?|decides?|depends?)\b"
    r"(?![^.]*\?)",
}
COMPILED = {name: re.compile(pattern) for name, pattern in PATTERNS.items()}
COMMENT = {".cc": "//", ".h": "//", ".cu": "//", ".c": "//", ".py": "#", ".sh": "#", ".cmake": "#", ".in": "#", "": "#"}


def prose_of(path: Path):
    """Yields the number and the text of each line of prose."""
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        body = line.strip()
        if path.suffix == ".md":
            if body and not line.startswith("    "):
                yield number, body
        elif re.fullmatch(r"\.[1-8]", path.suffix):
            if body and not body.startswith(('.\\"', ".TH", ".SH")):
                yield number, re.sub(r"^\.[A-Z]+\s*|\\f[A-Z]|\\", "", body)
        elif mark := COMMENT.get(path.suffix):
            at = body.find(mark)
            is_comment = at == 0 if mark == "#" else at >= 0 and body[:at].count('"') % 2 == 0
            if is_comment and not body.startswith("#!"):
                yield number, body[at:].lstrip("#/!< ")


@pytest.mark.parametrize("part", ["core", "fs", "tools", "tests", "packaging", "README.md", "CHANGELOG.md", "CONTRIBUTING.md",
                                  "SECURITY.md"])
def test_sentences_can_be_read_once(part: str):
    listed = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", part], cwd=ROOT, capture_output=True, text=True, check=True)
    hits, words = [], 0
    for name in listed.stdout.splitlines():
        for number, text in prose_of(ROOT / name):
            words += len(text.split())
            hits += [f"{name}:{number}: {kind}: {text}" for kind, pattern in COMPILED.items() if pattern.search(text)]
    rate = 10_000 * len(hits) / max(words, 1)
    assert rate <= MOST_PER_10_000_WORDS, "\n".join([f"{rate:.1f} per 10,000 words of {part}:", *hits])
