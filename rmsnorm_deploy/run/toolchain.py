"""Which C++ compiler there is on this machine: the one decision that compiling, its report and measurements share."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence

from rmsnorm_deploy.errors import MissingEnvironment

COMPILERS = ("c++", "g++", "clang++")
"""What compiles C++."""
LINKERS = (*COMPILERS, "gcc", "clang", "cc")
"""What links objects that are compiled already: a C compiler does, too."""


def compiler(names: Sequence[str] = COMPILERS, variables: Sequence[str] = ("CXX",)) -> list[str]:
    """The command of a compiler: that of the first environment variable that is set, else the first name on the PATH.

    A variable may hold more than a name, as in ``CXX="ccache g++"`` or ``CXX="g++ -m64"``.

    Args:
        names: looked for where no variable is set.
        variables: the environment variables.

    Returns:
        The path of the program, and its first arguments.

    Raises:
        MissingEnvironment: there is none. Where a variable is set, nothing else is looked for.
    """
    for variable in variables:
        try:
            named = shlex.split(os.environ.get(variable, ""))
        except ValueError as error:
            raise MissingEnvironment(
                f"there is no C++ compiler: {variable} cannot be read: {str(error).lower()}",
                f"Set {variable} to a C++ compiler, or unset it.",
            ) from error
        if named:
            if found := shutil.which(named[0]):
                return [found, *named[1:]]
            raise MissingEnvironment(
                f"there is no C++ compiler: {variable} names '{named[0]}', which is not a program",
                f"Set {variable} to a C++ compiler, or unset it.",
            )
    for name in names:
        if found := shutil.which(name):
            return [found]
    raise MissingEnvironment("there is no C++ compiler", f"Install {names[0]}, or set {variables[0]}.")


def linker() -> list[str]:
    """The command that links a shared library for this machine, by CXX, CC or :data:`LINKERS`; see :func:`compiler`.

    Raises:
        MissingEnvironment: there is none.
    """
    return compiler(LINKERS, ("CXX", "CC"))
