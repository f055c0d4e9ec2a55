"""The tokens of an expression.

Rule 1: one pass, no regular expressions, every character read once or twice.
Rule 2: keywords and operators are found here, so the parser compares kinds and never text.
Rule 3: an error has the position, counted from 1, and quotes no more than a few characters.

    WORD     color  NULL                      a name, or a keyword in any case
    NAME     [with space]  "quoted"           always a name
    TEXT     'it''s'        NUMBER  12  1.5  2E3        PARAMETER  @limit
    SYMBOL   = <> != < <= > >= + - * / % ( ) , . ;      END
"""

from __future__ import annotations

import enum
import math
from typing import Any, Final, NamedTuple

from twinbus.broker.engine.filters.rule_values import (
    EXPRESSION_CHARACTERS_MAX,
    IDENTIFIER_CHARACTERS_MAX,
    INT64_MAX,
    check_text,
)
from twinbus.errors import ConfigurationError


class TokenKind(enum.Enum):
    WORD = "a name"
    KEYWORD = "a keyword"
    NAME = "a name in brackets"
    TEXT = "a text"
    NUMBER = "a number"
    PARAMETER = "a parameter"
    SYMBOL = "a symbol"
    END = "the end"


KEYWORDS: Final = frozenset(
    {"AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "IS", "NULL", "EXISTS", "TRUE", "FALSE"}
)
_PAIRS: Final = frozenset({"<>", "!=", "<=", ">="})
_SINGLES: Final = frozenset("=<>+-*/%(),.;")
_DIGITS: Final = frozenset("0123456789")
_CLOSERS: Final = {"'": "'", '"': '"', "[": "]"}


class Token(NamedTuple):
    """One token and where it begins."""

    kind: TokenKind
    value: Any
    """A keyword in upper case, a symbol, a name, or the value of a constant."""
    position: int

    def __str__(self) -> str:
        return "the end" if self.kind is TokenKind.END else quote(str(self.value))


def quote(text: str) -> str:
    """A few characters of a client's text, safe for an error and a log."""
    return "'" + ascii(text[:20])[1:-1] + "'"


def refusal(
    sentence: str, position: int, hint: str = "Check the expression at this position"
) -> ConfigurationError:
    """An error in an expression, with its position."""
    return ConfigurationError(
        f"{sentence}, at character {position + 1} of the expression", hint=hint
    )


def tokenize(expression: str) -> list[Token]:
    """The tokens of ``expression``, END last; ConfigurationError if it is empty."""
    check_text(expression, "the expression", EXPRESSION_CHARACTERS_MAX)
    lexer = _Lexer(expression)
    tokens = []
    while (token := lexer.next()).kind is not TokenKind.END:
        tokens.append(token)
    if not tokens:
        raise ConfigurationError(
            "The expression is empty",
            hint="Write a condition, for example 1=1, or a SET or REMOVE statement",
        )
    return [*tokens, token]


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0

    def next(self) -> Token:
        text = self.text
        while self.pos < len(text) and text[self.pos].isspace():
            self.pos += 1
        start = self.pos
        if start >= len(text):
            return Token(TokenKind.END, "", start)
        char = text[start]
        if char in _CLOSERS:
            return self._enclosed(start, _CLOSERS[char])
        if char in _DIGITS or (char == "." and text[start + 1 : start + 2] in _DIGITS):
            return self._number(start)
        if char.isalpha():
            return self._word(start)
        if char == "@":
            return self._parameter(start)
        return self._symbol(start)

    def _symbol(self, start: int) -> Token:
        for symbol, known in ((self.text[start : start + 2], _PAIRS), (self.text[start], _SINGLES)):
            if symbol in known:
                self.pos = start + len(symbol)
                return Token(TokenKind.SYMBOL, symbol, start)
        raise refusal(
            f"Unexpected character {quote(self.text[start])}",
            start,
            "Start a name with a letter, or put it into [brackets]",
        )

    def _run(self) -> str:
        """The letters, digits and underscores from here on."""
        start, text = self.pos, self.text
        while self.pos < len(text) and (
            text[self.pos].isalpha() or text[self.pos].isdecimal() or text[self.pos] == "_"
        ):
            self.pos += 1
        return text[start : self.pos]

    def _word(self, start: int) -> Token:
        word = self._run()
        if word.upper() in KEYWORDS:
            return Token(TokenKind.KEYWORD, word.upper(), start)
        return Token(TokenKind.WORD, _checked_name(word, start), start)

    def _parameter(self, start: int) -> Token:
        self.pos += 1
        name = self._run()
        if not name:
            raise refusal("A parameter has no name", start, "Write @ followed by a name")
        return Token(TokenKind.PARAMETER, "@" + _checked_name(name, start), start)

    def _enclosed(self, start: int, closer: str) -> Token:
        """Text or a name up to ``closer``, which is doubled inside the text."""
        parts = []
        self.pos = start + 1
        while True:
            end = self.text.find(closer, self.pos)
            if end < 0:
                raise refusal(
                    f"The character {quote(self.text[start])} is not closed",
                    start,
                    f"Add {closer}",
                )
            parts.append(self.text[self.pos : end])
            self.pos = end + 1
            if self.text[self.pos : self.pos + 1] != closer:
                break
            parts.append(closer)
            self.pos += 1
        value = "".join(parts)
        if closer == "'":
            return Token(TokenKind.TEXT, value, start)
        if not value:
            raise refusal("A name is empty", start)
        return Token(TokenKind.NAME, _checked_name(value, start), start)

    def _number(self, start: int) -> Token:
        whole = self._digits()
        fraction = ""
        if self.text[self.pos : self.pos + 1] == ".":
            self.pos += 1
            fraction = "." + self._digits()
        exponent = self._exponent()
        if self._run():
            raise refusal("A number is followed by a letter", start, "Put a space between them")
        if not fraction and not exponent:
            return Token(TokenKind.NUMBER, _whole_number(whole, start), start)
        value = float((whole or "0") + fraction + exponent)
        if math.isinf(value):
            raise refusal("A number is too large", start)
        return Token(TokenKind.NUMBER, value, start)

    def _digits(self) -> str:
        start = self.pos
        while self.pos < len(self.text) and self.text[self.pos] in _DIGITS:
            self.pos += 1
        return self.text[start : self.pos]

    def _exponent(self) -> str:
        """An exponent such as E-3, or nothing."""
        start = self.pos
        if self.text[start : start + 1] in ("E", "e"):
            self.pos += 2 if self.text[start + 1 : start + 2] in ("+", "-") else 1
            if self._digits():
                return self.text[start : self.pos]
            self.pos = start
        return ""


def _whole_number(digits: str, start: int) -> int:
    # One beyond the largest is accepted, for the smallest: -9223372036854775808.
    if int(digits) > INT64_MAX + 1:
        raise refusal("An integer has more than 64 bits", start)
    return int(digits)


def _checked_name(name: str, start: int) -> str:
    if len(name) > IDENTIFIER_CHARACTERS_MAX:
        raise refusal(
            f"A name has {len(name)} characters, the maximum is {IDENTIFIER_CHARACTERS_MAX}",
            start,
            f"Use at most {IDENTIFIER_CHARACTERS_MAX}",
        )
    return name
