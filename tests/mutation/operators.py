"""The faults that are made: errors in a comparison, a condition, a call, a lock or a loop."""

import re

from clang.cindex import Cursor, CursorKind, TypeKind

from candidate import IS_ON, Candidate, Edit, numbered
from source_text import SourceText
from syntax_tree import OPEN_MACROS, SyntaxTree

NEIGHBOURS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
INTEGERS = (
    TypeKind.USHORT, TypeKind.UINT, TypeKind.ULONG, TypeKind.ULONGLONG,
    TypeKind.SHORT, TypeKind.INT, TypeKind.LONG, TypeKind.LONGLONG,
)  # fmt: skip
FUNCTIONS = (
    CursorKind.FUNCTION_DECL, CursorKind.CXX_METHOD, CursorKind.CONSTRUCTOR, CursorKind.DESTRUCTOR,
    CursorKind.FUNCTION_TEMPLATE, CursorKind.CONVERSION_FUNCTION,
)  # fmt: skip
# Code that is evaluated during the compilation.
FIXED = (CursorKind.STATIC_ASSERT, CursorKind.ENUM_DECL, CursorKind.CXX_UNARY_EXPR, CursorKind.CONCEPT_DECL)
SIZE = re.compile(r"(?:^|[_.>])(size|bytes|count|length|end|begin|offset|last|first)(_|\(\))?$")
CONSTANT = re.compile(r"(\w+::)*k[A-Z]\w*$")
LOCK = re.compile(
    r"(?:const\s+)?(?P<type>(?:MutexLock|SharedLock)|std::(?:scoped_lock|unique_lock|shared_lock)(?:<[^>]*>)?)\s+(?P<name>\w+)"
    r"[({](?P<what>.*)[)}]$",
    re.S,
)
# Functions whose arguments may be exchanged without an effect.
SYMMETRIC = {"min", "max", "swap", "equal", "exchange", "midpoint", "gcd", "lcm"}


class Operators(SyntaxTree):
    """Finds the candidates in one file that libclang has read."""

    def __init__(self, file: str, source: SourceText, root: Cursor):
        super().__init__(source, root)
        self.file = file
        self.found: list[Candidate] = []
        self.function = ""
        self.function_end = 0
        for child in root.get_children():
            if self.is_here(child):
                self.visit(child, root)
        self.found = numbered(self.found)

    # --- the tree -----------------------------------------------------------------------------------

    def visit(self, node: Cursor, parent: Cursor):
        if node.kind in FIXED:
            return
        macro = self.macro_of(node)
        if macro is not None:
            self.visit_macro(node, *macro)
            return
        if node.kind in (CursorKind.VAR_DECL, CursorKind.FIELD_DECL) and self.is_constant(node):
            return
        outer = self.function, self.function_end
        if node.kind in FUNCTIONS:
            self.function, self.function_end = node.spelling, node.extent.end.offset
        if self.function:
            self.look_at(node, parent)
        children = list(node.get_children())
        for child in children[1:] if node.kind == CursorKind.CASE_STMT else children:
            self.visit(child, node)
        self.function, self.function_end = outer

    def visit_macro(self, node: Cursor, begin: int, end: int, name: str):
        """Visits only the argument of an open macro."""
        if name not in OPEN_MACROS:
            return
        if node.kind == CursorKind.DO_STMT:
            argument = self.source.text[begin + len(name) : end]
            self.add(
                "ignored result", (begin, end), "goes on",
                Edit(begin, end, f"\nif ({IS_ON}) static_cast<void>{argument}; else\n", "\n"),
            )  # fmt: skip
        for child in node.get_children():
            self.visit(child, node)

    def look_at(self, node: Cursor, parent: Cursor):
        kind = node.kind
        if kind == CursorKind.BINARY_OPERATOR or kind == CursorKind.CALL_EXPR:
            self.look_at_operator(node, parent)
        if kind == CursorKind.IF_STMT or kind == CursorKind.WHILE_STMT:
            self.look_at_condition(node)
        elif kind == CursorKind.CONDITIONAL_OPERATOR:
            self.force(next(node.get_children()), (True, False))
        elif kind == CursorKind.FOR_STMT:
            self.look_at_for(node)
        elif kind == CursorKind.CXX_FOR_RANGE_STMT:
            self.look_at_range(node)
        elif kind == CursorKind.INTEGER_LITERAL:
            self.look_at_number(node, parent)
        elif kind == CursorKind.DECL_REF_EXPR and CONSTANT.match(self.text_of(node)):
            self.look_at_number(node, parent)
        elif kind == CursorKind.VAR_DECL:
            self.look_at_variable(node)
        elif kind in FUNCTIONS:
            self.look_at_function(node)
        if kind == CursorKind.CALL_EXPR:
            self.look_at_arguments(node)
            self.look_at_step(node, parent)
        self.look_at_statement(node, parent)

    # --- what is made of it -------------------------------------------------------------------------

    def add(self, operator: str, node: tuple[int, int], new: str, *edits: Edit):
        begin, end = node
        text = self.source.text
        if begin >= end or any(re.search(r"\n\s*#", text[edit.begin : edit.end]) for edit in edits):
            return
        old = self.source.words(begin, end)
        line = text.count("\n", 0, begin) + 1
        self.found.append(Candidate(self.file, line, operator, self.function, old, new, edits))

    def choose(self, operator: str, node: Cursor, new: str, old_as: str = "", shown: str = ""):
        """Replaces an expression by another one."""
        begin, end = self.range_of(node)
        self.add(
            operator, (begin, end), shown or " ".join(new.split()),
            Edit(begin, end, f"\n({IS_ON} ? {old_as}(\n{new}\n) : {old_as}(\n", "\n))"),
        )  # fmt: skip

    def choose_truth(self, operator: str, node: Cursor, new: str):
        self.choose(operator, node, new, "static_cast<bool>")

    def look_at_operator(self, node: Cursor, parent: Cursor):
        sides = self.sides(node)
        if sides is None:
            return
        left, right, operator = sides
        if operator in ("&&", "||"):
            inner = self.unwrapped(left)
            if not (inner.kind == CursorKind.BINARY_OPERATOR and (self.sides(inner) or ("", "", ""))[2] == operator):
                self.choose_truth("dropped term", node, self.text_of(right))
            self.choose_truth("dropped term", node, self.text_of(left))
        elif operator in NEIGHBOURS:
            new = f"({self.text_of(left)}\n) {NEIGHBOURS[operator]} ({self.text_of(right)}\n)"
            self.choose_shown("comparison", node, new, left, NEIGHBOURS[operator], right)
        elif operator in ("==", "!=") and not self.is_condition(node, parent):
            # Dropping the comparison from && has the same effect as true, and from || the same as false.
            around = (self.sides(parent) or ("", "", ""))[2] if parent.kind == CursorKind.BINARY_OPERATOR else ""
            for new in ("true", "false"):
                if (around, new) not in (("&&", "true"), ("||", "false")):
                    self.choose_truth("comparison", node, new)

    def choose_shown(self, operator: str, node: Cursor, new: str, left: Cursor, sign: str, right: Cursor):
        shown = f"{self.source.words(*self.range_of(left))} {sign} {self.source.words(*self.range_of(right))}"
        self.choose(operator, node, new, "static_cast<bool>", shown)

    def is_condition(self, node: Cursor, parent: Cursor) -> bool:
        """Returns true if forcing the condition, or dropping a term, makes the same fault."""
        return parent.kind in (CursorKind.IF_STMT, CursorKind.WHILE_STMT, CursorKind.CONDITIONAL_OPERATOR)

    def force(self, condition: Cursor, values: tuple[bool, ...], operator: str = "forced condition"):
        for value in values:
            self.choose_truth(operator, condition, "true" if value else "false")

    def look_at_condition(self, node: Cursor):
        condition = self.condition_of(node)
        if condition is None:
            return
        if node.kind == CursorKind.WHILE_STMT:
            self.force(condition, (False,))
        elif self.is_failed_result(condition):
            self.force(condition, (False,), "ignored result")
        else:
            self.force(condition, (True, False))

    def look_at_for(self, node: Cursor):
        begin, end = self.range_of(node)
        opening = self.source.plain.find("(", begin, end)
        stops = self.source.semicolons(opening + 1, self.source.closing(opening))
        if len(stops) != 2:
            return
        for child in node.get_children():
            first, last = self.range_of(child)
            sides = self.sides(self.unwrapped(child)) if stops[0] < first and last <= stops[1] else None
            if sides and sides[2] in ("<", "!="):
                left, right, operator = sides
                step = (
                    f"(({self.text_of(left)}\n) + 1)"
                    if left.type.get_canonical().kind in INTEGERS
                    else f"std::next({self.text_of(left)}\n)"
                )
                new = f"{step} {operator} ({self.text_of(right)}\n)"
                self.choose("shorter loop", child, new, "static_cast<bool>", "ends one step early")

    def look_at_range(self, node: Cursor):
        begin, end = self.range_of(node)
        opening = self.source.plain.find("(", begin, end)
        closing = self.source.closing(opening)
        colon = re.search(r"(?<!:):(?!:)", self.source.plain[opening:closing])
        if colon is None:
            return
        first = opening + colon.end()
        if self.source.plain[first:closing].lstrip().startswith("{"):
            return  # no type can be deduced from braces
        self.add(
            "shorter loop", (first, closing), "all but the last",
            Edit(first, closing, f"\nstfs_mutation::shortened({IS_ON},\n", "\n)"),
        )  # fmt: skip

    def look_at_number(self, node: Cursor, parent: Cursor):
        begin, end = self.range_of(node)
        text = self.text_of(node)
        if node.kind == CursorKind.INTEGER_LITERAL and not re.match(r"[0-9]", text):
            return
        if node.type.get_canonical().kind not in INTEGERS:
            return
        before, behind = self.source.char_before(begin), self.source.char_behind(end)
        if before in ("<", ",") and behind == ">" and not self.source.plain[end:].lstrip().startswith(">="):
            return  # the argument of a template
        if parent.kind in (CursorKind.VAR_DECL, CursorKind.FIELD_DECL, CursorKind.PARM_DECL) and before not in "={(":
            return  # of a type
        is_zero = re.fullmatch(r"0[uUlLzZ]*", text)
        is_limit = node.kind == CursorKind.DECL_REF_EXPR
        for new in () if is_limit else ("+ 1",):
            self.choose("number by one", node, f"{text} {new}")
        for new in () if is_zero else ("- 1",):
            self.choose("number by one", node, f"{text} {new}")

    def look_at_variable(self, node: Cursor):
        lock = LOCK.match(self.text_of(node))
        if lock:
            self.look_at_lock(node, lock)
            return
        children = list(node.get_children())
        if not children or node.type.get_canonical().kind not in INTEGERS or not SIZE.search(node.spelling):
            return
        first, last = self.range_of(children[-1])
        if first > node.location.offset and self.source.char_before(first) in ("=", "{", "("):
            self.choose_size(children[-1], "+ 1")

    def choose_size(self, node: Cursor, change: str):
        if node.kind != CursorKind.INTEGER_LITERAL and not self.unwrapped(node).kind == CursorKind.INTEGER_LITERAL:
            shown = f"{self.source.words(*self.range_of(node))} {change}"
            self.choose("size by one", node, f"({self.text_of(node)}\n) {change}", shown=shown)

    def look_at_lock(self, node: Cursor, lock: re.Match):
        begin, end = self.range_of(node)
        rest = self.source.plain[end : self.function_end]
        if re.search(rf"\b{lock['name']}\b", rest):
            return  # a wait, or an unlock, needs it
        kind = f"std::optional<decltype({lock['type']}({lock['what']}))>"
        behind = f"; {kind} {lock['name']}; if (!{IS_ON}) {lock['name']}.emplace({lock['what']})"
        # The declaration becomes a lambda that is never called.
        self.add(
            "no lock", (begin, end), "no lock",
            Edit(begin, end, f"\n[[maybe_unused]] const auto {lock['name']}_made = [&] {{ ", f"; }}{behind}\n"),
        )  # fmt: skip

    def look_at_function(self, node: Cursor):
        body = [child for child in node.get_children() if child.kind == CursorKind.COMPOUND_STMT]
        if not body or not node.result_type.get_canonical().spelling.startswith("tl::expected<void"):
            return
        at = body[-1].extent.start.offset + 1
        self.add(
            "early success", (at - 1, at), "returns success at once",
            Edit(at, at, f"\nif ({IS_ON}) return {{}};\n"),
        )  # fmt: skip

    def look_at_step(self, node: Cursor, parent: Cursor):
        """Handles a call whose result is only success or failure: a sync, a lock, a check."""
        called, kind = node.referenced, node.type.get_canonical().spelling
        if not kind.startswith("tl::expected<void") or called is None or called.kind not in FUNCTIONS:
            return
        if called.kind == CursorKind.CONSTRUCTOR or called.result_type.get_canonical().spelling != kind:
            return
        if parent.kind in (CursorKind.CXX_STATIC_CAST_EXPR, CursorKind.CSTYLE_CAST_EXPR):
            return  # "call left out" makes it already
        self.choose("step left out", node, f"{kind}()", shown="success")

    def look_at_arguments(self, node: Cursor):
        if node.spelling.startswith("operator") and node.spelling != "operator()":
            return
        arguments = [one for one in node.get_arguments() if one is not None and one.extent.end.offset > 0]
        for one in arguments:
            if one.type.get_canonical().kind in INTEGERS and SIZE.search(self.text_of(one)):
                self.choose_size(one, "- 1")
        if node.spelling in SYMMETRIC:
            return
        for left, right in zip(arguments, arguments[1:]):
            self.look_at_pair(left, right)

    def look_at_pair(self, left: Cursor, right: Cursor):
        texts = self.text_of(left), self.text_of(right)
        kinds = {one.type.get_canonical().spelling.removeprefix("const ") for one in (left, right)}
        if len(kinds) != 1 or kinds & {"", "<dependent type>"} or texts[0] == texts[1]:
            return
        begin, end = self.range_of(left)[0], self.range_of(right)[1]
        edits = [
            Edit(*self.range_of(one), f"\n({IS_ON} ? (\n{other}\n) : (\n", "\n))")
            for one, other in ((left, texts[1]), (right, texts[0]))
        ]
        words = [" ".join(text.split()) for text in texts]
        self.add("swapped arguments", (begin, end), f"{words[1]}, {words[0]}", *edits)

    def look_at_statement(self, node: Cursor, parent: Cursor):
        """Handles a call whose result is not used."""
        bodies = (CursorKind.COMPOUND_STMT, CursorKind.IF_STMT, CursorKind.FOR_STMT, CursorKind.WHILE_STMT,
                  CursorKind.CXX_FOR_RANGE_STMT, CursorKind.CASE_STMT, CursorKind.DEFAULT_STMT)  # fmt: skip
        if parent.kind not in bodies or self.source.char_behind(node.extent.end.offset) != ";":
            return
        if self.source.char_before(node.extent.start.offset) not in (";", "{", "}", ")", ":", "e"):
            return
        if parent.kind == CursorKind.FOR_STMT and self.source.char_before(node.extent.start.offset) != ")":
            return
        inner = self.unwrapped(node)
        if inner.kind in (CursorKind.CXX_STATIC_CAST_EXPR, CursorKind.CSTYLE_CAST_EXPR):
            inner = self.unwrapped(list(inner.get_children())[-1])
        if inner.kind != CursorKind.CALL_EXPR or re.match(r"operator[^(]", inner.spelling):
            return
        condition = self.condition_of(parent) if parent.kind == CursorKind.IF_STMT else None
        if condition is not None and condition == node:
            return
        begin, end = self.range_of(node)
        self.add(
            "call left out", (begin, end), "(nothing)",
            Edit(begin, end, f"\n({IS_ON} ? static_cast<void>(0) : static_cast<void>(\n", "\n))"),
        )  # fmt: skip
