"""The sessions that a page of the documentation shows: what is typed, as a script, and what is printed."""

import re

# The prompts of a shell and of Python: a new command, and a line that continues a command.
PROMPT = re.compile(r" {4}(\$|>|>>>|\.\.\.)(?: (.*))?")


def typed_in(section):
    """Yields (prompt, text) for each line that is typed."""
    for line in section.splitlines():
        if match := PROMPT.fullmatch(line):
            yield match[1], match[2] or ""


def shown_by(section):
    """Returns the lines of output that a section shows."""
    return [line.strip() for line in section.splitlines() if line.startswith("    ") and not PROMPT.fullmatch(line)]


def script_of(section):
    """Returns a script of bash with the commands of a section. Lines with `>>>` are for the Python that was started
    before."""
    lines, is_python = [], False
    for prompt, text in typed_in(section):
        is_of_python = prompt in (">>>", "...")
        if is_of_python and not is_python:
            assert lines.pop() == "python3"
            lines.append("python3 -i 2>&1 <<'PYTHON'")
            lines.append("import sys; sys.excepthook = lambda *e: (sys.__excepthook__(*e), __import__('os')._exit(1))")
        elif is_python and not is_of_python:
            lines.append("PYTHON")
        is_python = is_of_python
        lines.append(text)
    return "\n".join(["set -e", *lines, *(["PYTHON"] if is_python else []), ""])


def missing_from(output, section):
    """Returns the lines that a section shows from the first that was not printed, in this order, on. `...` in a line means
    any text."""
    printed = iter(output.splitlines())
    shown = shown_by(section)
    for at, line in enumerate(shown):
        # A Python whose input is no terminal prints its prompts, and no line end behind them.
        pattern = r"(?:>>> |\.\.\. )*" + ".*".join(map(re.escape, line.split("...")))
        if not any(re.fullmatch(pattern, text.strip()) for text in printed):
            return shown[at:]
    return []
