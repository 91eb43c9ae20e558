"""One step that is taken out of the core or of fs/, or done in another way."""

import dataclasses
from pathlib import Path

# Of what the explorer tries.
KINDS = ("crashes", "random", "choices", "faults", "hosts", "edges", "journals", "groups")


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    old: str
    new: str
    # In these a round of the explorer notices it soonest; all the same, each mutant fails one of the tests.
    kinds: tuple[str, ...] = KINDS
    more: tuple[tuple[str, str], ...] = ()  # further texts of the same file
    scenario: str = ""  # the workload, or the scenario of hosts or edges, that shows it soonest
    tests: str = ""  # those of fs_tests that show it, as Catch2 names them; without them the explorer does

    def apply(self, root: Path) -> tuple[Path, str]:
        """The file of the repository that changes, and its new content."""
        files = [*(root / "fs").rglob("*.cc")] if self.tests else []
        files += (root / "core").rglob("*.cc")
        there = [file for file in sorted(files) if self.old in file.read_text()]
        if len(there) != 1 or there[0].read_text().count(self.old) != 1:
            raise ValueError(f"{self.name}: the text must be there once, is in {len(there)} files: {self.old!r}")
        text = there[0].read_text().replace(self.old, self.new)
        for old, new in self.more:
            if text.count(old) != 1:
                raise ValueError(f"{self.name}: the text must be there once, is there {text.count(old)} times: {old!r}")
            text = text.replace(old, new)
        return there[0], text
