"""From a certificate's subject to a user: Kafka's ``ssl.principal.mapping.rules``, interpreted as in a broker (KIP-371,
Kafka's ``SslPrincipalMapper``): the first rule that matches the *whole* distinguished name determines the user.
Patterns are Java's there and Python's here: a rule that the two would interpret differently is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

DEFAULT_RULES: Final = "DEFAULT"

_RULE: Final = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER: Final = re.compile(r"\s*(" + _RULE + r")\s*(?:,\s*|\Z)")
_PARSER: Final = re.compile(_RULE)
_TOKEN: Final = re.compile(r"\\(.)|\$\{([A-Za-z][A-Za-z0-9]*)\}|\$([0-9]*)|([^$])", re.DOTALL)
"""Of a replacement: an escaped character, a named group, a numbered one, any other character."""
_SAME_IN_BOTH: Final = frozenset("dDsSwWnrtf" + "123456789")
"""Letters and digits that mean the same after a backslash in Java and in Python (\\b does not, in newer Javas)."""
_LINE_BREAKS: Final = frozenset("\n\r\u0085\u2028\u2029")
"""What a dot does not match in Java; in Python, only the first of them."""


class RuleError(ValueError):
    """The rules are invalid; the message names the rule and what is wrong with it."""


class NoRuleError(Exception):
    """No rule matches a name: a broker refuses such a client, and so do we."""


class PrincipalRules:
    """Parsed rules."""

    def __init__(self, text: str = DEFAULT_RULES) -> None:
        """Raises RuleError."""
        self._rules: list[_Rule | None] = []  # None: DEFAULT
        for rule in _SPLITTER.finditer(text.strip()):
            # A broker parses each piece once more, without the comma after it, and requires that it matches whole.
            found = _PARSER.match(rule[1])
            if found is None or found.end() != len(rule[1]):
                raise RuleError(f"DEFAULT or RULE:pattern/replacement/[LU], not {rule[1]!r}")
            if found[1] is not None:
                self._rules.append(None)
            elif found[2] is not None:
                self._rules.append(_Rule(found[2], found[3], found[4]))
        if not self._rules:
            raise RuleError("at least one rule: DEFAULT or RULE:pattern/replacement/[LU]")

    def user(self, distinguished_name: str) -> str:
        """The user of a subject as Java prints it (RFC 2253). Raises NoRuleError."""
        for rule in self._rules:
            name = distinguished_name if rule is None else rule.apply(distinguished_name)
            if name is not None:
                return name
        raise NoRuleError(f"no rule of ssl.principal.mapping.rules matches the subject {distinguished_name!r}")


class _Rule:
    def __init__(self, pattern: str, replacement: str, case: str) -> None:
        _refuse_what_differs(pattern)
        try:
            # Java's \d, \w, \s and \b know ASCII alone, its named groups lack the P.
            self._pattern = re.compile(re.sub(r"(?<!\\)\(\?<(?=[A-Za-z])", "(?P<", pattern), re.ASCII)
        except re.error as error:
            raise RuleError(f"a regular expression in {pattern!r}: {error}") from None
        self._parts = list(_parts(replacement, self._pattern))
        self._case = case

    def apply(self, name: str) -> str | None:
        if not _LINE_BREAKS.isdisjoint(name):
            raise NoRuleError(f"the subject {name!r} has a line break, which mapping rules may misread")
        if self._pattern.fullmatch(name) is None:
            return None
        # As in a broker: then every match of the pattern is replaced, which need not be the whole name.
        result = self._pattern.sub(self._replaced, name)
        return result.lower() if self._case == "L" else result.upper() if self._case == "U" else result

    def _replaced(self, match: re.Match[str]) -> str:
        return "".join(part if isinstance(part, str) else match[part] or "" for part in self._parts)


def _parts(text: str, pattern: re.Pattern[str]) -> Iterator[str | int]:
    r"""Java's replacement text as literals and groups: $1 is a group (of as many digits as there are groups), ${name}
    too, \x is x. Raises RuleError."""
    for escaped, name, digits, plain in _TOKEN.findall(text):
        if escaped or plain:
            yield escaped or plain
        elif name:
            if name not in pattern.groupindex:
                raise RuleError(f"a group named {name}, used by the replacement, in {pattern.pattern!r}")
            yield pattern.groupindex[name]
        elif not digits:
            raise RuleError(f"a number or a name in braces after each $ of the replacement {text!r}")
        elif (number := int(digits[0])) <= pattern.groups:
            rest = digits[1:]
            while rest and number * 10 + int(rest[0]) <= pattern.groups:
                number, rest = number * 10 + int(rest[0]), rest[1:]
            yield from (number, rest)
        elif pattern.groups == 0:  # a broker accepts such rules, and then fails on the first certificate that matches
            raise RuleError(f"a pattern with a group, as the replacement {text!r} uses ${number}")
        else:  # no such group: taken literally
            yield "$" + digits


def _refuse_what_differs(pattern: str) -> None:
    r"""Raises RuleError for what Java and Python interpret differently: escaped letters other than the common ones
    (\p{...}, \Q...\E, \h, \R, \z), brackets and && inside brackets (unions and intersections there), and flags or
    groups that only one of them has."""

    def refuse(what: str) -> RuleError:
        return RuleError(f"a pattern with the same meaning in Java and Python; {what} in {pattern!r} differs")

    in_class = False
    position = 0
    while position < len(pattern):
        char, following = pattern[position], pattern[position + 1 : position + 2]
        if char == "\\":
            if following.isalnum() and (following not in _SAME_IN_BOTH or (in_class and following in "123456789")):
                raise refuse(f"\\{following}")
            position += 2
            continue
        if in_class:
            if char == "[" or pattern.startswith("&&", position):
                raise refuse(f"{char} in brackets")
            in_class = char != "]"
        elif char == "[":
            in_class = True
            position += pattern.startswith("^", position + 1)
            if pattern.startswith("]", position + 1):  # Python takes it as a member, Java as syntax
                raise refuse("] right after [")
        elif position == 0 and pattern.startswith("(?i)"):  # of ASCII letters alone, there and with re.ASCII
            position += 3
        elif pattern.startswith("(?", position) and not re.compile(r"\(\?(?:[:=!]|<[=!A-Za-z])").match(
            pattern, position
        ):
            raise refuse(pattern[position : position + 3])
        elif char == "$" and position + 1 < len(pattern) and pattern[position + 1] not in "|)":
            raise refuse("$ before the end")
        position += 1
