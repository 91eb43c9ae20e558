"""Reads sources with libclang, with the commands of compile_commands.json, and keeps the candidates."""

import concurrent.futures
import hashlib
import json
import os
import shlex
import subprocess
from pathlib import Path

from candidate import Candidate

FOLDER = Path(__file__).resolve().parent
TAKEN = ("-D", "-I", "-std", "-isystem", "-U")


def arguments_of(command: str) -> list[str]:
    """Returns the arguments that decide how a file is parsed."""
    words = iter(shlex.split(command)[1:])
    taken = []
    for word in words:
        if word in ("-isystem", "-I", "-D"):
            taken += [word, next(words)]
        elif word.startswith(TAKEN):
            taken.append(word)
    return taken


def compiler_headers() -> str:
    """Returns the headers of GCC, because libclang's package has no headers."""
    return subprocess.run(["g++", "-print-file-name=include"], capture_output=True, text=True).stdout.strip()


def read_text(path: Path, name: str, arguments: list[str], content: bytes) -> list[Candidate]:
    from clang.cindex import Index, TranslationUnit

    from operators import Operators
    from source_text import SourceText

    unit = Index.create().parse(
        str(path),
        args=[*arguments, "-x", "c++", "-w", "-isystem", compiler_headers()],
        options=TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD,
    )
    errors = [str(one) for one in unit.diagnostics if one.severity >= 3]
    if errors:
        raise ValueError(f"{name}: libclang can't read it: {errors[0]}")
    return Operators(name, SourceText(content), unit.cursor).found


class Reader:
    """`build` is a build of `root` with a compile_commands.json."""

    def __init__(self, root: Path, build: Path, cache: Path):
        self.root = root
        self.cache = cache
        cache.mkdir(parents=True, exist_ok=True)
        units = json.loads((build / "compile_commands.json").read_text())
        self.commands = {os.path.relpath(unit["file"], root): unit["command"] for unit in units}
        makers = (FOLDER / name for name in ("operators.py", "syntax_tree.py", "source_text.py", "candidate.py"))
        self.makers = hashlib.sha256(b"".join(file.read_bytes() for file in makers)).hexdigest()

    def read(self, name: str) -> list[Candidate]:
        """@param name  relative to the repository."""
        content = (self.root / name).read_bytes()
        digest = hashlib.sha256(content + self.makers.encode()).hexdigest()
        kept = self.cache / (name.replace("/", "~") + ".json")
        if kept.exists():
            known = json.loads(kept.read_text())
            if known["digest"] == digest:
                return [Candidate.from_json(fields) for fields in known["candidates"]]
        found = read_text(self.root / name, name, arguments_of(self.command_of(name)), content)
        text = json.dumps({"digest": digest, "candidates": [one.to_json() for one in found]})
        kept.with_suffix(".new").write_text(text)
        kept.with_suffix(".new").rename(kept)
        return found

    def command_of(self, name: str) -> str:
        """Returns the command of a source. A header gets the command of the source with its name, or of another source in
        its folder."""
        if name in self.commands:
            return self.commands[name]
        own = name.removesuffix(".h") + ".cc"
        beside = (known for known in self.commands if known.split("/")[0] == name.split("/")[0])
        return self.commands.get(own) or self.commands[min(beside, key=lambda known: (os.path.dirname(known) != os.path.dirname(name), known))]

    def read_all(self, names: list[str]) -> dict[str, list[Candidate]]:
        with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
            return dict(zip(names, pool.map(self.read, names, chunksize=2)))
