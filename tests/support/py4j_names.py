"""Names of Java's classes, asked of the JVM once: PySpark asks for them at every function of every column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def keep_names() -> None:
    """Have py4j keep what it has learned of a class, a package or a static method, next to what it was asked for on."""
    from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView

    def is_known(name: str, found: Any) -> bool:
        return isinstance(found, JavaClass) or (isinstance(found, JavaPackage) and name.islower())

    def is_method(_name: str, found: Any) -> bool:
        return isinstance(found, JavaMember)

    for asked, keeps in ((JVMView, is_known), (JavaPackage, is_known), (JavaClass, is_method)):
        asked.__getattr__ = _keeping(asked.__getattr__, keeps)


def _keeping(ask: Callable[[Any, str], Any], keeps: Callable[[str, Any], bool]) -> Callable[[Any, str], Any]:
    def answer(self: Any, name: str) -> Any:
        found = ask(self, name)
        if keeps(name, found):
            self.__dict__[name] = found  # Python looks there first
        return found

    return answer
