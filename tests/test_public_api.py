"""The public names are those that docs/api.rst lists; examples import nothing else, and benchmarks say what they do.

`plot`, `errors`, `events` and `testing` are public as modules.
"""

from __future__ import annotations

import ast
import re
from importlib import import_module

import pytest
from test_docs import _BLOCK, DOCS, GALLERY, PAGES, ROOT

import streampca
from streampca import errors, events, plot

LISTED = re.findall(r"^   ([A-Za-z][\w.]*)$", (DOCS / "api.rst").read_text(encoding="utf-8"), re.MULTILINE)
PUBLIC = {f"streampca.{name}" for name in LISTED} | {"streampca.__version__"}
MODULES = {"streampca", "streampca.errors", "streampca.events", "streampca.plot", "streampca.testing"}

BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))
# The reader stands in a package of its own; the page shows the other examples as files of this one.
READER = sorted((DOCS / "extending_example").glob("*raw_reader.py"))

# Sub-packages and modules that a benchmark takes by themselves, to time, watch or replace a part of a run.
TAKEN_APART = {
    "bounds": {"events", "models"},  # asks which components are only defined together
    "budget": {"fitting", "models", "storage", "units"},  # notes the peak of each phase
    "busy": {"machine"},
    "choices": {"eigensolvers", "events", "planning"},  # measures the two sides of a constant
    "cluster": {"execution", "machine", "units"},  # gives each worker cores of its own
    "copies": {"preprocessing"},
    "distances": {"fitting", "models", "units"},
    "embeddings": {"units"},
    "kernel_matrix": {"fitting", "models", "units"},
    "kernels": {"planning", "units"},
    "kills": {"planning"},
    "limits": {"accumulators", "fitting", "machine", "planning"},  # puts clocks around reading, products and probes
    "many_files": {"readers"},
    "metered": {"machine"},
    "neighbors": {"fitting"},
    "unfolding_sets": {"events", "manifold"},  # leaves out what is too small, and listens for warnings
    "scaling": {"accumulators", "events", "execution", "fitting", "machine", "planning", "units"},  # its own cluster
    "rates": {"eigensolvers", "execution", "machine", "planning", "preprocessing"},  # measures the rates of plans
    "report": {"units"},
    "surfaces": {"units"},
    "tight": {"cli"},  # runs commands in a process that it watches
    "unfolding": {"manifold"},
    "watched": {"cli", "execution", "planning"},
    "wide": {"execution", "fitting", "kinds", "planning", "preprocessing", "units"},
}


def code_of(path):
    """Python of a script, or of a page's blocks in order."""
    text = path.read_text(encoding="utf-8")
    return text if path.suffix == ".py" else "\n".join(m[3] for m in _BLOCK.finditer(text) if m[2] == "python")


def dotted(node):
    """Name at the left of ``a.b.c``, and the rest; nothing where what stands there is no name."""
    names = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return (node.id, names) if isinstance(node, ast.Name) else ("", [])


def used_by(code):
    """Names of this package, with their modules, that Python imports or reaches as attributes of what it imports."""
    tree, bound = ast.parse(code), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
            roots = {name.name.partition(".")[0] for name in node.names}
            bound.update(
                {root: root for root in roots} | {name.asname: name.name for name in node.names if name.asname}
            )
        elif isinstance(node, ast.ImportFrom):
            names = {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
            yield from names.values()
            bound.update(names)
    for node in ast.walk(tree):
        root, names = dotted(node) if isinstance(node, ast.Attribute) else ("", [])
        if root in bound:
            yield ".".join([bound[root], *names])


def hidden_in(code):
    """Names of this package that are used and not public, nor an attribute of something public."""
    ours = {name for name in used_by(code) if name.partition(".")[0] == "streampca"} - MODULES
    return {name for name in ours if not any(name == known or name.startswith(f"{known}.") for known in PUBLIC)}


def test_a_hidden_name_is_found():
    assert hidden_in("import streampca\nstreampca.fit(1).components\nstreampca.errors.BudgetError") == set()
    assert hidden_in("import streampca as sp\nsp.fitting.fit.fit(1)") >= {"streampca.fitting.fit.fit"}
    assert hidden_in("from streampca import plot as p\np.scree(1)\np.drawing.axes(1)") == {
        "streampca.plot.drawing",
        "streampca.plot.drawing.axes",
    }
    assert hidden_in("from streampca.units import GIB") == {"streampca.units.GIB"}
    assert hidden_in("import streampca.machine") == {"streampca.machine"}


@pytest.mark.parametrize("path", [ROOT / "README.md", *PAGES, *GALLERY, *READER], ids=lambda path: path.stem)
def test_examples_use_public_names(path):
    assert hidden_in(code_of(path)) == set()


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_benchmarks_say_what_they_take_apart(path):
    """The others are examples, too; `units` reads budgets as they are written."""
    assert {name.split(".")[1] for name in hidden_in(code_of(path))} == TAKEN_APART.get(path.stem, set())


INTERNAL = {"Door", "_Worded"}  # how messages name options


def test_the_reference_has_every_public_name():
    modules = [(streampca, ""), (plot, "plot."), (errors, "errors."), (events, "events.")]
    own = {
        prefix + name
        for module, prefix in modules
        for name in getattr(module, "__all__", vars(module))
        if getattr(getattr(module, name), "__module__", "").startswith(module.__name__)
        if module in (streampca, plot) or isinstance(getattr(module, name), type)
        if name not in INTERNAL
    }
    assert {name for name in own if not {name, name.removeprefix("errors.")} & set(LISTED)} == set()


@pytest.mark.parametrize("name", LISTED)
def test_the_reference_has_nothing_else(name):
    module, _, last = f"streampca.{name}".rpartition(".")
    assert getattr(import_module(module), last).__doc__
