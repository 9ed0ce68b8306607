"""Gives executors a clear error when they lack this package.

Spark sends objects to executors by the names of their modules. Where there is no such module, that
ends in a bare ModuleNotFoundError deep inside of Spark. So ours are sent with a small function, by
its code: it looks for the module and, if it is missing, says what has to be shipped.
"""

import pickle
from typing import Any


def shipped(made: object, *arguments: Any) -> tuple[Any, ...]:
    """Return the value for an object's ``__reduce__``: make its class again from these arguments.

    The arguments are packed apart, because what they are made of lacks its module just as much.
    """

    def make(module: str, name: str, packed: bytes) -> Any:
        import importlib
        import pickle

        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"this Spark executor can't import {error.name}, which the data source icecore "
                "needs: install the package icecore with its extra spark into the Python of the "
                "executors (PYSPARK_PYTHON; an image, or a venv-pack or conda-pack archive by "
                "spark.archives). Its dependencies grpcio, numpy, xxhash and pyarrow are native, "
                "so a zip of Python files is not enough",
                name=error.name,
            ) from error
        cls = getattr(found, name)
        return cls(*pickle.loads(packed))

    make.__module__ = "__main__"  # cloudpickle sends functions of this module by their code
    cls = type(made)
    return make, (cls.__module__, cls.__name__, pickle.dumps(arguments))
