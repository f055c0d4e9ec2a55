"""From the tokens of an expression to its tree.

    OR  <  AND  <  NOT  <  = <> != < <= > >= IN LIKE IS  <  + -  <  * / %  <  sign  <  ( )

Rule 1: precedence climbing: one function that calls itself once per level of nesting, of which
        there are NESTING_MAX at most. No expression can exhaust Python's stack.
Rule 2: conditions and values are different: ``(a = 1) + 2`` and ``a = (b = c)`` are refused here,
        not for each message.
Rule 3: what is wrong for every message is refused here: unknown system properties, missing
        parameters, an escape that is not one character.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from twinbus.broker.engine.filters.lexer import Token, TokenKind, quote, refusal, tokenize
from twinbus.broker.engine.filters.like import LikePattern
from twinbus.broker.engine.filters.rule_values import INT64_MAX, NESTING_MAX, PropertyValue
from twinbus.broker.engine.filters.syntax_tree import (
    PREDICATES,
    And,
    Arithmetic,
    Comparison,
    Constant,
    Exists,
    In,
    IsNull,
    Like,
    Negative,
    NewId,
    Node,
    Not,
    Or,
    Property,
    PropertyNamed,
    Remove,
    Set,
    Statement,
)
from twinbus.broker.engine.filters.system_properties import (
    check_own_name,
    readable,
    removable,
    writable,
)
from twinbus.broker.engine.filters.values import plain
from twinbus.errors import ConfigurationError, FilterError

_OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _SIGN = range(1, 8)

_LEVELS: Final = {
    "OR": _OR,
    "AND": _AND,
    **dict.fromkeys(("=", "<>", "!=", "<", "<=", ">", ">="), _COMPARISON),
    **dict.fromkeys(("NOT", "IN", "LIKE", "IS"), _COMPARISON),
    **dict.fromkeys("+-", _SUM),
    **dict.fromkeys("*/%", _PRODUCT),
}
_CONSTANTS: Final = {"TRUE": True, "FALSE": False, "NULL": None}
_SCOPES: Final = ("sys", "user")


def parse_filter(expression: str, parameters: Mapping[str, PropertyValue]) -> Node:
    """The condition of ``expression``; ConfigurationError if it is not a condition."""
    parser = _Parser(tokenize(expression), parameters)
    node = parser.condition(parser.expression(_OR), parser.tokens[0])
    parser.expect_end()
    return node


def parse_action(expression: str, parameters: Mapping[str, PropertyValue]) -> list[Statement]:
    """The statements of an action, in order."""
    parser = _Parser(tokenize(expression), parameters)
    statements = []
    while parser.token.kind is not TokenKind.END:
        statements.append(parser.statement())
        while parser.skip(";"):
            pass
    return statements


class _Parser:
    def __init__(self, tokens: list[Token], parameters: Mapping[str, PropertyValue]) -> None:
        self.tokens = tokens
        self.index = 0
        self.depth = 0
        self.parameters = {name.lower(): plain(value) for name, value in parameters.items()}

    @property
    def token(self) -> Token:
        return self.tokens[self.index]

    def take(self) -> Token:
        token = self.tokens[self.index]
        self.index += 1
        return token

    def skip(self, word: str) -> bool:
        """Skip a keyword or a symbol, if it is the next token."""
        found = self._is(word)
        self.index += found
        return found

    def _is(self, word: str) -> bool:
        return self.token.kind in (TokenKind.KEYWORD, TokenKind.SYMBOL) and self.token.value == word

    def expect(self, word: str) -> None:
        if not self.skip(word):
            raise refusal(f"Expected {word!r}, found {self.token}", self.token.position)

    def expect_end(self) -> None:
        if self.token.kind is not TokenKind.END:
            raise refusal(f"Unexpected {self.token}", self.token.position)

    # --- levels ------------------------------------------------------------------------------

    def expression(self, level: int) -> Node:
        """Everything that binds at least as tightly as ``level``."""
        self.depth += 1
        if self.depth > NESTING_MAX:
            raise refusal(
                f"The expression is nested deeper than {NESTING_MAX} levels",
                self.token.position,
                "Use fewer parentheses",
            )
        first = self.token
        left = self._prefix(level)
        while (found := self._next_level()) >= level:
            left = _JOINERS[found](self, left, first)
        self.depth -= 1
        return left

    def _next_level(self) -> int:
        token = self.token
        if token.kind in (TokenKind.KEYWORD, TokenKind.SYMBOL):
            return _LEVELS.get(token.value, 0)
        return 0

    def _prefix(self, level: int) -> Node:
        token = self.token
        if level <= _NOT and self.skip("NOT"):
            return Not(self.condition(self.expression(_NOT), token))
        if self.skip("-"):
            return self._negative(token)
        if self.skip("+"):
            return self.value(self.expression(_SIGN), token)
        if self.skip("("):
            inner = self.expression(_OR)
            self.expect(")")
            return inner
        return self._primary()

    def _negative(self, token: Token) -> Node:
        item = self.value(self.expression(_SIGN), token)
        if isinstance(item, Constant) and type(item.value) in (int, float):
            return Constant(-item.value)
        return Negative(item)

    def alternatives(self, left: Node, first: Token) -> Node:
        items = [self.condition(left, first)]
        while self.skip("OR"):
            token = self.token
            items.append(self.condition(self.expression(_AND), token))
        return Or(tuple(items))

    def conditions(self, left: Node, first: Token) -> Node:
        items = [self.condition(left, first)]
        while self.skip("AND"):
            token = self.token
            items.append(self.condition(self.expression(_NOT), token))
        return And(tuple(items))

    def sum(self, left: Node, first: Token) -> Node:
        return self._chain(left, first, "+-", _PRODUCT)

    def product(self, left: Node, first: Token) -> Node:
        return self._chain(left, first, "*/%", _SIGN)

    def _chain(self, left: Node, first: Token, signs: str, level: int) -> Node:
        head = self._within_range(self.value(left, first), first)
        rest = []
        while self.token.kind is TokenKind.SYMBOL and self.token.value in signs:
            sign = self.take().value
            rest.append((sign, self.operand(level)))
        return Arithmetic(head, tuple(rest))

    # --- comparisons -------------------------------------------------------------------------

    def comparison(self, left: Node, first: Token) -> Node:
        item = self._within_range(self.value(left, first), first)
        token = self.take()
        if token.value == "IS":
            node = self._is_null(item)
        elif token.value == "NOT":
            node = Not(self._membership(item, self.take()))
        elif token.kind is TokenKind.KEYWORD:
            node = self._membership(item, token)
        else:
            node = Comparison(token.value, item, self.operand(_SUM))
        if self._next_level() == _COMPARISON:
            raise refusal(
                f"Comparison {self.token} follows another comparison",
                self.token.position,
                "Join comparisons with AND",
            )
        return node

    def _is_null(self, item: Node) -> Node:
        negated = self.skip("NOT")
        self.expect("NULL")
        return Not(IsNull(item)) if negated else IsNull(item)

    def _membership(self, item: Node, token: Token) -> Node:
        if token.kind is TokenKind.KEYWORD and token.value == "IN":
            return In(item, self._choices())
        if token.kind is TokenKind.KEYWORD and token.value == "LIKE":
            pattern = self.operand(_SUM)
            escape = self._escape() if self.skip("ESCAPE") else None
            return Like(item, pattern, escape, _fixed_shape(pattern, escape, token))
        raise refusal(f"Expected IN or LIKE, found {token}", token.position)

    def _choices(self) -> tuple[Node, ...]:
        self.expect("(")
        choices = [self.operand(_SUM)]
        while self.skip(","):
            choices.append(self.operand(_SUM))
        self.expect(")")
        return tuple(choices)

    def _escape(self) -> Node:
        token = self.token
        escape = self.operand(_SUM)
        if isinstance(escape, Constant) and not (
            type(escape.value) is str and len(escape.value) == 1
        ):
            raise refusal(
                "ESCAPE requires exactly one character",
                token.position,
                "Write for example ESCAPE '\\'",
            )
        return escape

    # --- conditions and values ---------------------------------------------------------------

    def operand(self, level: int) -> Node:
        """A value that binds at least as tightly as ``level``."""
        token = self.token
        return self._within_range(self.value(self.expression(level), token), token)

    def value(self, node: Node, token: Token) -> Node:
        if isinstance(node, PREDICATES):
            raise refusal(
                "Expected a value, found a condition",
                token.position,
                "Compare values, and join comparisons with AND and OR",
            )
        return node

    def condition(self, node: Node, token: Token) -> Node:
        """A condition; a value is one, too, if it can be true or false."""
        if isinstance(node, Constant) and not (node.value is None or type(node.value) is bool):
            raise refusal(
                f"Expected a condition, found the value {token}",
                token.position,
                "Compare it with another value",
            )
        return node

    def _within_range(self, node: Node, token: Token) -> Node:
        """The largest number of the lexer is only valid with a minus sign before it."""
        if isinstance(node, Constant) and type(node.value) is int and node.value > INT64_MAX:
            raise refusal("An integer has more than 64 bits", token.position)
        return node

    def _primary(self) -> Node:
        token = self.take()
        if token.kind in (TokenKind.TEXT, TokenKind.NUMBER):
            return Constant(token.value)
        if token.kind is TokenKind.PARAMETER:
            return self._parameter(token)
        if token.kind is TokenKind.KEYWORD and token.value in _CONSTANTS:
            return Constant(_CONSTANTS[token.value])
        if token.kind is TokenKind.KEYWORD and token.value == "EXISTS":
            return self._exists()
        if token.kind is TokenKind.WORD and self._is("("):
            return self._function(token)
        return self._property(token, readable)

    def _parameter(self, token: Token) -> Node:
        if token.value.lower() not in self.parameters:
            raise refusal(
                f"Parameter {quote(token.value)} has no value",
                token.position,
                "Add a value to the parameters of the rule",
            )
        return Constant(self.parameters[token.value.lower()])

    def _exists(self) -> Node:
        self.expect("(")
        item = self._property(self.take(), readable)
        self.expect(")")
        return Exists(item)

    def _function(self, token: Token) -> Node:
        name = token.value.lower()
        self.expect("(")
        if name == "newid":
            node: Node = NewId()
        elif name in ("p", "property"):
            node = PropertyNamed(self.operand(_SUM))
        else:
            raise refusal(
                f"Unknown function {quote(token.value)}",
                token.position,
                "Use newid() or property(name)",
            )
        self.expect(")")
        return node

    def _property(self, token: Token, settle_system: Callable[[str], str]) -> Property:
        if token.kind not in (TokenKind.WORD, TokenKind.NAME):
            raise refusal(f"Expected a value, found {token}", token.position)
        if not self.skip("."):
            return Property(False, token.value)
        name = self.take()
        scope = token.value.lower()
        if token.kind is TokenKind.NAME or scope not in _SCOPES or name.kind not in _NAMES:
            raise refusal(
                f"{token}.{name} is not a property",
                token.position,
                "Use sys.Name, user.Name, or [a.name] for a name with a dot",
            )
        if scope == "user":
            return Property(False, name.value)
        try:
            return Property(True, settle_system(name.value))
        except ConfigurationError as error:
            raise refusal(error.sentence.rstrip("."), name.position, error.hint) from None

    # --- statements --------------------------------------------------------------------------

    def statement(self) -> Statement:
        token = self.take()
        verb = token.value.upper() if token.kind is TokenKind.WORD else ""
        if verb == "SET":
            target = self._target(writable)
            self.expect("=")
            return Set(target, self.operand(_SUM))
        if verb == "REMOVE":
            return Remove(self._target(removable))
        raise refusal(
            f"Expected SET or REMOVE, found {token}",
            token.position,
            "Use SET name = value, or REMOVE name",
        )

    def _target(self, settle_system: Callable[[str], str]) -> Property:
        token = self.take()
        target = self._property(token, settle_system)
        if not target.is_system:
            try:
                check_own_name(target.name)
            except ConfigurationError as error:
                raise refusal(error.sentence.rstrip("."), token.position, error.hint) from None
        return target


def _fixed_shape(pattern: Node, escape: Node | None, token: Token) -> LikePattern | None:
    """The compiled pattern, if it does not depend on the message."""
    if not isinstance(pattern, Constant):
        return None
    if type(pattern.value) is not str:
        raise refusal("LIKE requires a text pattern", token.position)
    if escape is not None and not isinstance(escape, Constant):
        return None
    try:
        return LikePattern(pattern.value, None if escape is None else escape.value)
    except FilterError as error:
        hint = "Write the escape character twice"
        raise refusal(error.sentence.rstrip("."), token.position, hint) from None


_NAMES: Final = (TokenKind.WORD, TokenKind.NAME)
_JOINERS: Final[dict[int, Callable[[_Parser, Node, Token], Node]]] = {
    _OR: _Parser.alternatives,
    _AND: _Parser.conditions,
    _COMPARISON: _Parser.comparison,
    _SUM: _Parser.sum,
    _PRODUCT: _Parser.product,
}
