"""The OpenAPI document is made, and says of every route what it is: no parameter, body or answer without a word."""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from types import ModuleType

import pytest

from bireme.api.app import TABLES
from bireme.api.routes import description
from bireme.api.routing import Route

ROUTES = [route for table in TABLES for route in table.table]
_READERS = {"flag", "number", "words"}
"""Functions of `routing` that read a parameter of the query, and take its name second."""


def named(route: Route) -> str:
    return f"{route.method} {route.path}"


def in_path(route: Route) -> list[str]:
    return re.findall(r"{(\w+)}", route.path)


def test_every_variable_part_of_a_path_is_described_and_no_other() -> None:
    used = {name for route in ROUTES for name in in_path(route)}
    told = description.IN_PATH
    missing = {named(route): lacking for route in ROUTES if (lacking := [n for n in in_path(route) if not told.get(n)])}
    assert missing == {}, "say in IN_PATH (api/routes/description.py) what stands there"
    assert set(told) - used == set(), "no path has these any more"


def test_the_document_says_what_each_route_does() -> None:
    document = description.describe(TABLES, "1")
    operations = {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    assert sorted(operations) == sorted(map(named, ROUTES)), "two routes have one method and path"
    assert [name for name, each in operations.items() if not each["summary"]] == [], "the handler has no docstring"
    silent = [
        f"{name} {each['name']}"
        for name, operation in operations.items()
        for each in operation.get("parameters", ())
        if not each["description"].strip()
    ]
    assert silent == []
    ids = Counter(operation["operationId"] for operation in operations.values())
    assert [name for name, count in ids.items() if count > 1] == [], "clients name their functions by it"


@pytest.mark.parametrize("module", sorted({route.handler.__module__ for route in ROUTES}))
def test_what_a_module_of_routes_reads_of_the_query_is_described(module: str) -> None:
    source = inspect.getmodule(next(route.handler for route in ROUTES if route.handler.__module__ == module))
    assert source is not None
    told = {name for route in ROUTES if route.handler.__module__ == module for name in route.query}
    assert read_of_the_query(source) - told == set()


def read_of_the_query(module: ModuleType) -> set[str]:
    """Names of parameters that are read in it, as far as they stand there as text."""
    found = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if not isinstance(node, ast.Call):
            continue
        call = ast.unparse(node.func)
        first = 0 if call.endswith("query_params.get") else 1 if call in _READERS else None
        if first is not None and len(node.args) > first and isinstance(name := node.args[first], ast.Constant):
            found.add(str(name.value))
    return found
