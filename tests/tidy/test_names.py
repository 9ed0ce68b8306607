"""A public class has a name of its own, so that a search for the name finds one thing."""

import ast
from collections import defaultdict

from tests.tidy.tree import production

TWICE = {
    "Admin": "generated for threads",
    "Consumer": "for threads and for asyncio",
    "Lookup": "generated for threads",
    "Producer": "for threads and for asyncio",
    "PublishedCopy": "the node's and the client's view of one object",
    "SendHandle": "for threads and for asyncio",
}
"""Names that two classes have, and why."""


def classes() -> dict[str, list[str]]:
    """Modules that define a public class, by the name of the class."""
    found = defaultdict(list)
    for module in production():
        if module.name.startswith("icecore.v1"):
            continue
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(module.name)
    return found


def test_each_public_class_has_a_name_of_its_own() -> None:
    twice = {name: modules for name, modules in classes().items() if len(modules) > 1}
    assert twice.keys() == TWICE.keys(), twice
