"""Small changes to a module's source, each of which a test should notice.

A mutant is one change in one place: a comparison turned, a constant moved by one, a condition fixed, a statement left
out. They are made from the syntax tree and written as text, so the rest of the file stays as it is. A mutant is
identified by its file, its function and the text of its lines before and after, and not by their number, which moves.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "|"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_SWAPPED = {"max": "min", "min": "max", "all": "any", "any": "all"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change.

    Attributes:
        file: relative to the repository.
        function: the qualified name of the function that it is in.
        before: the text that is replaced.
        after: the text that replaces it.
        at: where, as (begin, end) in the file's bytes.
        around: what else stands on its lines, before and after it.
    """

    file: str
    function: str
    before: str
    after: str
    at: tuple[int, int]
    around: tuple[str, str]

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The identity of a mutant while the code around it moves."""
        before, after = (" ".join(text.join(self.around).split()) for text in (self.before, self.after))
        return self.file, self.function, before, after

    def applied(self, source: bytes) -> bytes:
        """Return the file's text with the change."""
        begin, end = self.at
        return source[:begin] + self.after.encode() + source[end:]

    def __str__(self) -> str:
        file, function, before, after = self.key
        return f"{file} {function}: {before} -> {after}"


def mutants(root: Path, file: str) -> list[Mutant]:
    """Return all mutants of a file, in the order of its text.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "m.py").write_text("def f(a):\\n    return a < 1\\n")
    ...     for mutant in mutants(Path(folder), "m.py"):
    ...         print(mutant)
    m.py f: return a < 1 -> return a <= 1
    m.py f: return a < 1 -> return a < 2
    """
    source = (root / file).read_bytes()
    found = list(_Visitor(file, source).of_module())
    return sorted(found, key=lambda mutant: (*mutant.at, mutant.after))


class _Visitor:
    def __init__(self, file: str, source: bytes) -> None:
        self._file = file
        self._source = source
        self._tree = ast.parse(source)
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def of_module(self) -> Iterator[Mutant]:
        yield from self._of(self._tree, "")

    def _of(self, node: ast.AST, function: str) -> Iterator[Mutant]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _DEFINITIONS):
                name = f"{function}.{child.name}" if function else child.name
                if child.name not in ("dump", "__repr__", "__str__"):
                    yield from self._of(ast.Module(child.body, []), name)
                continue
            if isinstance(child, (ast.JoinedStr, ast.Raise, ast.Assert, ast.arguments)):
                continue  # messages, checks of types, and defaults
            if isinstance(child, ast.keyword) and child.arg == "strict":
                continue  # of `zip`: a check, too
            if isinstance(node, ast.AnnAssign) and child is node.annotation:
                continue
            if function:
                yield from self._expression(child, function)
                if isinstance(child, ast.stmt):
                    yield from self._statement(child, function)
            yield from self._of(child, function)

    def _statement(self, node: ast.stmt, function: str) -> Iterator[Mutant]:
        """Leave a statement out: a call for its effect, or an assignment to a part of something."""
        effect = isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await))
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        )
        part = bool(targets) and all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in targets)
        if effect or part or isinstance(node, (ast.Delete, ast.Continue)):
            yield self._mutant(node, function, "pass")
        if isinstance(node, (ast.If, ast.While)):
            yield from (self._mutant(node.test, function, text) for text in self._fixed(node))

    def _fixed(self, node: ast.If | ast.While) -> list[str]:
        if isinstance(node, ast.While):
            return ["False"]
        guards = len(node.body) == 1 and isinstance(node.body[0], ast.Raise)
        return ["False"] if guards else ["True", "False"]

    def _expression(self, node: ast.AST, function: str) -> Iterator[Mutant]:
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield self._joined(node, node.left, _COMPARISONS[type(node.ops[0])], node.comparators[0], function)
        elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS and not _is_text(node):
            yield self._joined(node, node.left, _OPERATORS[type(node.op)], node.right, function)
        elif isinstance(node, ast.AugAssign) and type(node.op) in _OPERATORS:
            yield self._joined(node, node.target, _OPERATORS[type(node.op)], node.value, function)
        elif isinstance(node, ast.BoolOp):
            joint = " or " if isinstance(node.op, ast.And) else " and "
            yield self._mutant(
                node, function, "(" + joint.join(f"({self._text(value)})" for value in node.values) + ")"
            )
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.Invert)):
            yield self._mutant(node, function, f"({self._text(node.operand)})")
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield self._mutant(node, function, str(node.value + 1))
        elif isinstance(node, ast.Constant) and type(node.value) is bool:
            yield self._mutant(node, function, str(not node.value))
        elif isinstance(node, ast.Name) and node.id in _SWAPPED:
            yield self._mutant(node, function, _SWAPPED[node.id])
        elif isinstance(node, ast.IfExp):
            yield self._mutant(node.test, function, f"(not ({self._text(node.test)}))")

    def _joined(self, node: ast.AST, left: ast.AST, turned: tuple[str, str], right: ast.AST, function: str) -> Mutant:
        """Turn the operator between two operands; brackets and all else stay."""
        begin, end = self._span(node)
        (_, after_left), (before_right, _) = self._span(left), self._span(right)
        between = self._source[after_left:before_right].decode().replace(*turned, 1)
        text = self._source[begin:after_left].decode() + between + self._source[before_right:end].decode()
        return self._mutant(node, function, text)

    def _mutant(self, node: ast.AST, function: str, after: str) -> Mutant:
        begin, end = self._span(node)
        line_end = self._source.find(b"\n", end)
        around = self._source[self._source.rfind(b"\n", 0, begin) + 1 : begin], self._source[end:line_end]
        left, right = (text.decode() for text in around)
        return Mutant(self._file, function, self._text(node), after, (begin, end), (left, right))

    def _span(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, (ast.expr, ast.stmt))
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._lines[node.lineno - 1] + node.col_offset, self._lines[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.AST) -> str:
        begin, end = self._span(node)
        return self._source[begin:end].decode()


def _is_text(node: ast.BinOp) -> bool:
    return any(isinstance(side, (ast.JoinedStr, ast.List)) or _is_string(side) for side in (node.left, node.right))


def _is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
