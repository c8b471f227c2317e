"""Makes mutants of a module: its source with one small change.

Stateless. Annotations, docstrings, log lines and texts of errors stay, and so
do changes that nothing can tell apart: a named size or time is replaced by 0
and not by one more, a comparison of times is turned round and not moved by an
instant, and keywords that declare a class or a thread are left alone.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn,
    ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt,
}  # fmt: skip
# Names of times in comparisons.
_TIME = re.compile(r'monotonic\(\)|\btime\(\)|\bnow\b|_at\b|deadline\b')
_DECLARING = frozenset(('daemon', 'frozen', 'kw_only', 'eq'))
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_SQL = re.compile(r'\b(SELECT|UPDATE|INSERT|DELETE|WHERE|FOR UPDATE)\b')
_SQL_CHANGES = (
    (r'\bAND\b', 'OR'), (r'\bOR\b', 'AND'), ('<=', '<'), (' > ', ' >= '),
    (r'\bNOT EXISTS\b', 'EXISTS'), (r'\bDISTINCT\b', ''),
    (r'\bFOR UPDATE\b', ''), (r' \+ ', ' - '), (r' - ', ' + '),
    (r"state = 'reported'", 'true'), (r"'claimed'", "'confirmed'"),
    (r'\bUNION ALL\b.*?(?=\n\s*\))', ''),
)  # fmt: skip
Position = tuple[int, int]


class Mutant(NamedTuple):
    """One mutant of a file.

    :ivar path: of the file, from the root of the repository
    :ivar line: that the change is in
    :ivar change: what was, and what is instead
    :ivar source: of the whole file
    :ivar lines: of the statement that is changed; of the whole file where it
        is executed by the import alone
    """

    path: str
    line: int
    change: str
    source: str
    lines: range


class _Change(NamedTuple):
    start: Position
    end: Position
    text: str


def of(path: str, source: str) -> Iterator[Mutant]:
    """Yield the mutants of a file, in the order of its lines."""
    tree = ast.parse(source)
    lines = source.splitlines(keepends=True)
    statements = _statements(tree)
    named = {id(value) for value in _named_numbers(tree)}
    changes = {
        change: None
        for node in _code(tree)
        for change in _changes(node)
        if id(node) not in named or change.text == '0'
    }
    for change in sorted(changes):
        before = _text(lines, change)
        mutated = _apply(lines, change)
        try:
            same = ast.dump(ast.parse(mutated)) == ast.dump(tree)
        except SyntaxError:
            continue
        if not same:
            short = ' '.join(f'{before} -> {change.text}'.split())
            line = change.start[0]
            around = statements.get(line, range(1, len(lines) + 1))
            yield Mutant(path, line, short[:150], mutated, around)


def _named_numbers(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield the numbers above 1 that the module gives a name."""
    for node in tree.body:
        value = getattr(node, 'value', None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and (
            isinstance(value, ast.Constant)
            and isinstance(value.value, int | float)
            and value.value > 1
        ):
            yield value


def _statements(tree: ast.Module) -> dict[int, range]:
    """Return the lines of its statement for each line inside a function."""
    names = {}
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            if not isinstance(node, ast.stmt) or node is function:
                continue
            body = getattr(node, 'body', None)
            last = body[0].lineno - 1 if body else node.end_lineno
            lines = range(node.lineno, max(node.lineno, last or 0) + 1)
            names.update(dict.fromkeys(lines, lines))
    return names


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that say what a module does."""
    for name, value in ast.iter_fields(node):
        if name in ('annotation', 'returns', 'decorator_list'):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _is_text(child):
                continue
            if isinstance(child, ast.keyword) and child.arg in _DECLARING:
                continue
            yield child
            yield from _code(child)


def _is_text(node: ast.AST) -> bool:
    """Whether a node is a docstring, a log line, or an error that is made."""
    if isinstance(node, ast.Expr):
        if isinstance(node.value, ast.Constant):
            return True
        return ast.unparse(node).startswith(('LOG.', 'warnings.warn'))
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        return True
    return isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr)


def _changes(node: ast.AST) -> Iterator[_Change]:
    for attribute in ('body', 'orelse', 'finalbody'):
        block = getattr(node, attribute, None)
        if isinstance(block, list):
            yield from _block_changes(block)
    for name in ('expression', 'statement'):
        for text in globals()[f'_{name}_texts'](node):
            yield _Change(
                (node.lineno, node.col_offset),  # type: ignore[attr-defined]
                (node.end_lineno, node.end_col_offset),  # type: ignore[attr-defined]
                text,
            )


def _expression_texts(node: ast.AST) -> Iterator[str]:
    """Yield what replaces an expression."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        others = _COMPARISONS
        if type(node.ops[0]) in _OPPOSITES and _TIME.search(ast.unparse(node)):
            others = _OPPOSITES
        other = others[type(node.ops[0])]()
        yield _expression(ast.Compare(node.left, [other], node.comparators))
    elif isinstance(node, ast.BoolOp):
        other_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield _expression(ast.BoolOp(other_op, node.values))
    elif isinstance(node, ast.UnaryOp) and isinstance(
        node.op, ast.Not | ast.Invert
    ):
        yield _expression(node.operand)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        operator = _OPERATORS[type(node.op)]()
        yield _expression(ast.BinOp(node.left, operator, node.right))
    elif isinstance(node, ast.IfExp):
        yield _expression(ast.IfExp(node.test, node.orelse, node.body))
    elif isinstance(node, ast.Constant):
        yield from _constant_texts(node.value)


def _constant_texts(value: object) -> Iterator[str]:
    if isinstance(value, bool):
        yield str(not value)
    elif isinstance(value, int | float):
        yield repr(value + 1)
        if value > 1:
            yield '0'
    elif isinstance(value, str) and _SQL.search(value):
        for pattern, instead in _SQL_CHANGES:
            for match in re.finditer(pattern, value, re.DOTALL):
                yield repr(
                    value[: match.start()] + instead + value[match.end() :]
                )


def _statement_texts(node: ast.AST) -> Iterator[str]:
    """Yield what replaces a statement."""
    if isinstance(node, ast.Expr | ast.AugAssign | ast.Delete | ast.Raise):
        yield 'pass'
    elif isinstance(node, ast.Return) and node.value is not None:
        if not isinstance(node.value, ast.Constant):
            yield 'return None'
    elif isinstance(node, ast.Continue):
        yield 'break'
    elif isinstance(node, ast.Break):
        yield 'continue'


def _block_changes(block: list[ast.stmt]) -> Iterator[_Change]:
    """Yield swaps of two calls, one of which follows the other."""
    for first, second in itertools.pairwise(block):
        if _is_text(first) or _is_text(second):
            continue
        if isinstance(first, ast.Expr) and isinstance(second, ast.Expr):
            indent = ' ' * first.col_offset
            yield _Change(
                (first.lineno, first.col_offset),
                (
                    second.end_lineno or second.lineno,
                    second.end_col_offset or 0,
                ),
                f'{ast.unparse(second)}\n{indent}{ast.unparse(first)}',
            )


def _expression(node: ast.expr) -> str:
    return f'({ast.unparse(ast.fix_missing_locations(node))})'


def _text(lines: list[str], change: _Change) -> str:
    (first, start), (last, end) = change.start, change.end
    if first == last:
        return lines[first - 1].encode()[start:end].decode()
    between = lines[first : last - 1]
    return ''.join([lines[first - 1][start:], *between, lines[last - 1][:end]])


def _apply(lines: list[str], change: _Change) -> str:
    (first, start), (last, end) = change.start, change.end
    head = lines[first - 1].encode()[:start].decode()
    tail = lines[last - 1].encode()[end:].decode()
    return ''.join(
        [*lines[: first - 1], head, change.text, tail, *lines[last:]]
    )
