"""A mutant: one step of core or tools/sync, changed."""

import dataclasses
from pathlib import Path

# Kinds of exploration.
KINDS = ("crashes", "random", "choices", "faults", "hosts", "edges", "journals", "groups", "edits",
         "edit-hosts", "pulls")


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    old: str
    new: str
    # The kinds in which a round of the explorer notices the mutant soonest.
    kinds: tuple[str, ...] = KINDS
    more: tuple[tuple[str, str], ...] = ()  # further texts, each in one file
    seed: int = 0  # the first seed; for a rare moment, a seed just before one that shows the mutant
    scenario: str = ""  # the workload, or the scenario of hosts or edges, that shows the mutant soonest

    def apply(self, root: Path) -> dict[Path, str]:
        """The files of the repository that change, and their new content."""
        files = [*(root / "core").rglob("*.cc"), *(root / "tools" / "sync").rglob("*.cc")]
        texts = {file: file.read_text() for file in sorted(files)}
        changed = {}
        for old, new in ((self.old, self.new), *self.more):
            there = [file for file, text in texts.items() if old in text]
            if len(there) != 1 or texts[there[0]].count(old) != 1:
                raise ValueError(f"{self.name}: the text must be there once, is in {len(there)} files: {old!r}")
            changed[there[0]] = texts[there[0]] = texts[there[0]].replace(old, new)
        return changed
