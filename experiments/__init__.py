"""Declared levers: pure data, one change each. `discover` collects them."""

from __future__ import annotations

import importlib
import pkgutil

from flywheel.errors import LeverError
from flywheel.lever import Lever


def discover() -> tuple[Lever, ...]:
    """Every lever in every module's `LEVERS`, in order of module and declaration.

    Raises LeverError for a module without `LEVERS`, something in it that is no lever, or a name
    that is used twice. Two names for one change are left to the plan, which says so.
    """
    found: list[Lever] = []
    names: dict[str, str] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        declared = getattr(importlib.import_module(f"{__name__}.{module}"), "LEVERS", None)
        if not isinstance(declared, tuple) or not all(isinstance(x, Lever) for x in declared):
            raise LeverError(f"experiments/{module}.py must declare LEVERS, a tuple of levers")
        for lever in declared:
            if lever.name in names:
                raise LeverError(
                    f"lever {lever.name} is declared in both {names[lever.name]} and {module}"
                )
            names[lever.name] = module
        found += declared
    return tuple(found)
