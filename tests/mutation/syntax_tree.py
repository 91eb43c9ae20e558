"""The syntax tree of a source file from libclang, and functions about it for the operators."""

from ctypes import byref, c_uint

from clang.cindex import Cursor, CursorKind, SourceLocation, c_object_p, conf

from source_text import SourceText

# Macros with an ordinary expression as their argument. Faults are put into the argument.
OPEN_MACROS = ("RETURN_IF_ERROR",)


def offset_in_file(location: SourceLocation) -> int:
    """Returns the offset of the text itself. SourceLocation.offset is the macro's offset for all text in its arguments."""
    file, line, column, offset = c_object_p(), c_uint(), c_uint(), c_uint()
    conf.lib.clang_getSpellingLocation(location, byref(file), byref(line), byref(column), byref(offset))
    return int(offset.value)


class SyntaxTree:
    def __init__(self, source: SourceText, root: Cursor):
        self.source = source
        self.path = root.spelling
        self.macros = [
            (*self.range_of(child), child.spelling)
            for child in root.get_children()
            if child.kind == CursorKind.MACRO_INSTANTIATION and self.is_here(child)
        ]

    def is_here(self, node: Cursor) -> bool:
        return node.location.file is not None and node.location.file.name == self.path

    @staticmethod
    def range_of(node: Cursor) -> tuple[int, int]:
        return offset_in_file(node.extent.start), offset_in_file(node.extent.end)

    def text_of(self, node: Cursor) -> str:
        begin, end = self.range_of(node)
        return self.source.text[begin:end]

    def macro_of(self, node: Cursor) -> tuple[int, int, str] | None:
        """Returns the macro that makes this node, or None for the argument of an open macro."""
        begin, end = self.range_of(node)
        for first, last, name in self.macros:
            if first <= begin and end <= last and not (name in OPEN_MACROS and begin > first + len(name)):
                return first, last, name
        return None

    def is_constant(self, node: Cursor) -> bool:
        if node.kind == CursorKind.FIELD_DECL and node.is_bitfield():
            return True
        if node.semantic_parent is not None and node.semantic_parent.kind in (
            CursorKind.NAMESPACE,
            CursorKind.TRANSLATION_UNIT,
        ):
            return True
        begin, _ = self.range_of(node)
        return "constexpr" in self.source.plain[begin : node.location.offset]

    def sides(self, node: Cursor) -> tuple[Cursor, Cursor, str] | None:
        """Returns both sides and the operator of a binary operator, which may be overloaded."""
        parts = list(node.get_children())
        if node.kind == CursorKind.CALL_EXPR:
            if not node.spelling.startswith("operator"):
                return None
            parts = list(node.get_arguments())
        if len(parts) != 2:
            return None
        (_, left_end), (right_begin, _) = self.range_of(parts[0]), self.range_of(parts[1])
        operator = self.source.plain[left_end:right_begin].replace("~", " ").strip()
        return parts[0], parts[1], operator

    @staticmethod
    def unwrapped(node: Cursor) -> Cursor:
        while node.kind in (CursorKind.UNEXPOSED_EXPR, CursorKind.PAREN_EXPR):
            children = list(node.get_children())
            if len(children) != 1:
                break
            node = children[0]
        return node

    def condition_of(self, node: Cursor) -> Cursor | None:
        begin, end = self.range_of(node)
        opening = self.source.plain.find("(", begin, end)
        if opening < 0 or "constexpr" in self.source.plain[begin:opening]:
            return None
        closing = self.source.closing(opening)
        inside = [
            child for child in node.get_children()
            if opening < child.extent.start.offset and child.extent.end.offset <= closing
        ]  # fmt: skip
        is_declared = any(child.kind == CursorKind.VAR_DECL for child in inside)
        if not inside or is_declared or inside[-1].kind == CursorKind.DECL_STMT:
            return None
        # For `if (auto found = look())` libclang lists the variable twice.
        stops = self.source.semicolons(opening + 1, closing)
        if not stops and any(child.kind == CursorKind.DECL_STMT for child in inside):
            return None
        return inside[-1]

    def is_failed_result(self, condition: Cursor) -> bool:
        if not self.text_of(condition).startswith("!"):
            return False
        node = condition
        while (children := list(node.get_children())) and len(children) == 1:
            node = children[0]
            if "expected<" in node.type.get_canonical().spelling:
                return True
        return False
