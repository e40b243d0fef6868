"""The shape of the house: imports point down, siblings stay apart, heavy packages stay where they belong."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from types import MappingProxyType

import pytest

import streampca

PACKAGE = Path(streampca.__file__).parent

# Top to bottom, in the order of a run from its last stage to its first. A module imports from rows below its own, never
# from its row or above; a sub-package is one name.
ROWS = """
__main__
cli
estimators
fitting
plot
models
manifold
eigensolvers
accumulators
preprocessing
readers
execution
storage
planning
kinds
notebook
events
machine
signals
units
errors
arrays
"""
# `PCAModel.merge` solves anew: a method of what a layer below made, which people look for there.
UPWARDS = {("models/pca", "streampca.fitting.merge")}
LEVEL = {name: -row for row, line in enumerate(ROWS.split("\n")) for name in line.split()}
NOTHING = MappingProxyType({})
EVERYWHERE = {"__init__", "testing"}  # may import anything; of these, only the version is imported

# Who may know a package: modules, or parts of a sub-package ("readers/dask" stands for every file of that name).
KNOWS = {
    "zarr": ("readers", "models", "storage", "cli/demo_data"),
    "dask": ("readers/dask", "execution", "models"),
    "distributed": ("execution",),
    "click": ("cli",),
    "rich": ("cli",),
    "pydantic": (),
    "yaml": ("cli",),
    "sklearn": ("estimators", "cli/demo_data", "preprocessing/kernels", "manifold"),
    "faiss": ("manifold",),
    "onnxruntime": ("accumulators/integer_products",),
    "torch": ("accumulators/torch_products", "machine"),
    "matplotlib": ("plot", "models"),
    "jinja2": ("plot/report",),
    "h5py": ("readers",),
    "astropy": ("readers", "preprocessing/mask_files"),
    "cftime": ("readers/coordinates", "readers/dates"),
    "tifffile": ("readers", "models/export", "storage/tiff_pages"),
    "pyarrow": ("storage", "readers/source", "readers/score_tables"),
    "PIL": ("readers", "preprocessing/resize", "plot", "models"),
    "psutil": ("machine",),
    "fsspec": ("storage",),
    "aiohttp": ("storage",),
}


# What the command line imports beside public names, and why.
FOR_COMMANDS = {
    "errors": "raised",
    "arrays": "types in signatures",
    "events": "shown",
    "units": "written and read",
    "kinds": "described in run files and by options",
    "signals": "handled by the process of a command",
    "machine": "set up for the process of a command",
    "storage": "files of run directories, which are locked, recovered and not written over",
    "readers": "paths of sources, which outputs must not replace",
    "execution.cluster_options": "options that run files may not give",
    "execution.checkpoint": "folders of checkpoints, which lie beside outputs",
    "execution.threads": "the demonstration, whose products are small",
    "execution.executor": "the cluster, which all stages of a run share",
    "execution.fingerprint": "settings of outputs, which are compared as those of unfinished work",
    "fitting.foresee_outputs": "what a run of several outputs refuses before the first",
    "fitting.seen": "samples that a source has gained since a run",
    "preprocessing.copy": "outputs that exist, which a run refuses before the first",
    "models.store": "outputs that exist, which a run refuses before the first",
    "manifold.stored_graph": "outputs that exist, which a run refuses before the first",
    "preprocessing.mask_files": "masks and factors, which a run gives by their files",
    "planning.registry": "names of methods, which a shell completes",
    "plot.report": "the demonstration's pictures, and the files of a report, which a run refuses before the first",
    "models.accuracy": "tables on the terminal",
    "models.notebook": "pictures on the terminal",
    "preprocessing.resize": "pictures on the terminal",
    "models.compression": "the class of a result",
    "planning.embedding": "the class of a plan",
}


def sources(planted=NOTHING):
    """(its name in the house, its place inside the package, all it imports) of every module, as if some had more text.

    Imports are absolute names, wherever they stand: at the top, in functions, for type checking only.
    """
    for file in sorted(PACKAGE.rglob("*.py")):
        path = file.relative_to(PACKAGE)
        text = file.read_text() + planted.get(str(path), "")
        yield path.parts[0].removesuffix(".py"), path.with_suffix(""), imported(("streampca", *path.parent.parts), text)


def parsed(text):
    """The syntax tree of a text; Python 3.11 mixes up depths where another thread runs meanwhile (gh-106905)."""
    try:
        return ast.parse(text)
    except SystemError:
        return ast.parse(text)


@cache  # what is planted changes one file
def imported(inside, text):
    """Absolute names of everything that a text in a package imports."""
    found = []
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = inside[: len(inside) - node.level + 1] if node.level else ()
            whole = ".".join([*base, *([node.module] if node.module else [])])
            found += [f"{whole}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "import_module":
            found += [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
    return tuple(found)


def broken_rules(planted=NOTHING):
    """Every import that breaks the layer rule, in words."""
    homes = {name for name, _, _ in sources()}
    for name, place, targets in sources(planted):
        if name in EVERYWHERE:
            continue
        for target in targets:
            parts = target.split(".")
            if (
                parts[0] != "streampca"
                or len(parts) < 2
                or parts[1] == "__version__"
                or (str(place), target) in UPWARDS
            ):
                continue
            other = streampca._HOME.get(parts[1], f".{parts[1]}").split(".")[1]  # public names are of a sub-package
            if other not in homes:
                yield f"{place} imports {other}, which is not a module"
            elif not {name, other} <= LEVEL.keys() | EVERYWHERE:
                yield f"{place} imports {other}, and one of them has no row"
            elif other in EVERYWHERE:
                yield f"{place} imports {other}"
            elif other != name and LEVEL[other] >= LEVEL[name]:
                way = "its sibling" if LEVEL[other] == LEVEL[name] else "upwards"
                yield f"{place} imports {way} {other}"


def below_the_front(planted=NOTHING):
    """Every import by the command line that is neither a public name nor has a reason, in words."""
    for name, place, targets in sources(planted):
        for target in targets if name == "cli" else ():
            inner = target.removeprefix("streampca.")
            known = (*FOR_COMMANDS, "cli", "__version__", "plot", *streampca.__all__)
            if inner != target and not any(f"{inner}.".startswith(f"{each}.") for each in known):
                yield f"{place} imports {inner}"


def strangers(planted=NOTHING):
    """Every import of a package by a module that should not know it, in words."""
    for name, place, targets in sources(planted):
        for target in targets:
            known = KNOWS.get(target.split(".")[0])
            if (
                known is not None
                and name not in known
                and not any("/" in k and str(place).startswith(k) for k in known)
            ):
                yield f"{place} imports {target}"


def test_every_module_has_its_place():
    homes = {name for name, _, _ in sources()} - EVERYWHERE
    assert homes <= LEVEL.keys(), f"give {homes - LEVEL.keys()} a row"


def test_imports_point_down():
    assert list(broken_rules()) == []


def test_commands_import_public_names():
    """And nothing below them but what has a reason, which is still needed."""
    assert list(below_the_front()) == []
    used = {target.removeprefix("streampca.") for name, _, targets in sources() if name == "cli" for target in targets}
    assert all(any(f"{inner}.".startswith(f"{reason}.") for inner in used) for reason in FOR_COMMANDS)
    planted = {"cli/pipeline.py": "\nfrom ..fitting.open_fit import open_fit\n"}
    assert [*below_the_front(planted)] == ["cli/pipeline imports fitting.open_fit.open_fit"]


def test_planning_imports_little():
    """Numbers of cores and sizes arrive as integers."""
    found = {target.split(".")[1] for name, _, targets in sources() if name == "planning"
             for target in targets if target.startswith("streampca.")}  # fmt: skip
    assert found <= {"planning", "kinds", "errors", "units", "notebook"}


def test_packages_are_known_where_they_belong():
    assert list(strangers()) == []


@pytest.mark.parametrize(
    ("module", "line", "complaint"),
    [
        ("planning/blocks.py", "from ..storage import writers", "planning/blocks imports upwards storage"),
        ("errors.py", "def late():\n    from .fitting import fit", "errors imports upwards fitting"),
        ("units.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .models.pca import PCAModel",
         "units imports upwards models"),
        ("eigensolvers/dense.py", "import streampca.plot.overview_figure", "eigensolvers/dense imports upwards plot"),
        ("planning/request.py", "from importlib import import_module\nx = import_module('streampca.cli')",
         "planning/request imports upwards cli"),
        ("models/pca.py", "from ..testing import AccumulatorLaws", "models/pca imports testing"),
        ("accumulators/probes.py", "import zarr", "accumulators/probes imports zarr"),
        ("planning/plan.py", "def late():\n    import dask.array as da", "planning/plan imports dask.array"),
    ],
)  # fmt: skip
def test_a_planted_import_is_caught(module, line, complaint):
    """The test of the test."""
    planted = {module: f"\n{line}\n"}
    assert {*broken_rules(planted), *strangers(planted)} == {complaint}


def test_what_is_no_module_is_installed_too():
    """An editable installation, which only links to these files, would not show this."""
    settings = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    installed = {file for pattern in settings["package-data"]["streampca"] for file in PACKAGE.glob(pattern)}
    files = {file for file in PACKAGE.rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")}
    assert installed == {file for file in files if "/." not in str(file.relative_to(PACKAGE.parent))}


def test_no_strided_view_is_negated_or_examined_in_place():
    """Numpy 2.4 fills some strided outputs wrongly: `negative` where rows have 16 or 64 bytes, `isfinite` in any."""
    wrong, examined = [], {"isfinite", "isinf", "isnan", "signbit"}
    texts = {file: file.read_text() for file in sorted(PACKAGE.rglob("*.py"))}
    named = {file: text for file, text in texts.items() if any(name in text for name in ("negative", *examined))}
    assert named
    for file, text in named.items():
        for node in ast.walk(parsed(text)):
            name = getattr(node, "attr", "") if isinstance(node, ast.Attribute) else ""
            called = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
            into = isinstance(node, ast.Call) and any(word.arg in {"out", "where"} for word in node.keywords)
            if name == "negative" or (called in examined and into):
                wrong.append(f"{file.relative_to(PACKAGE)}:{node.lineno}")
    assert wrong == []


def test_the_top_is_small():
    entries = {name for name, _, _ in sources()} - {"__init__", "__main__"}
    assert sum((PACKAGE / name).is_dir() for name in entries) <= 14
    assert sum((PACKAGE / f"{name}.py").exists() for name in entries) <= 8


def test_no_file_is_long():
    lines = {str(file): file.read_text().count("\n") for file in PACKAGE.rglob("*.py")}
    assert {file: count for file, count in lines.items() if count > 700} == {}


def test_no_function_has_more_than_8_parameters():
    """But for constructors; keywords of a run and of opening, as one `Unpack`, count as one."""
    long = set()
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(parsed(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "__init__":
                parameters = node.args
                names = [arg.arg for arg in (*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs)]
                count = len(names) - (names[:1] in (["self"], ["cls"]))
                count += bool(parameters.vararg) + bool(parameters.kwarg)
                long |= {node.name} if count > 8 else set()
    assert not long


def test_no_module_is_called_everything_or_like_a_function():
    names = {place.name for _, place, _ in sources()}
    assert not names & {"core", "utils", "helpers", "common", "util", "misc"}
    assert not {name for name, _, _ in sources()} & set(streampca.__all__)


def loaded_by(*steps):
    """Packages that are loaded after each of some steps of a fresh process."""
    show = "print(*{name.partition('.')[0] for name in sys.modules}, 'matplotlib.pyplot' in sys.modules)"
    script = "\n".join(["import sys", *(f"{step}\n{show}" for step in steps)])
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)
    return [set(line.split()) for line in done.stdout.splitlines()]


HEAVY = {"scipy", "sklearn", "dask", "zarr", "matplotlib", "h5py", "PIL", "tifffile"}
OF_COMMANDS = {"pydantic", "rich", "click"}
A_PICTURE = """
import numpy as np
from streampca.models.pca import PCAModel
samples = {"n_samples": 9, "sample_dims": ("x",), "raw_shape": (9,), "raw_kind": "f", "mean": np.zeros(9)}
one, facts = np.ones(1), {"components": np.eye(1, 9), "total_variance": 1.0}
bounds = {"residual_bound": one, "angle_bound": one, "error_bound": one}
model = PCAModel(explained_variance=one, **bounds, **facts, **samples)
streampca.plot.save(streampca.plot.scree(model), "scree.png")
"""


@pytest.mark.slow
def test_what_is_used_is_loaded_then(here):
    """The public names work, and only what they need comes with them; pictures need no pyplot."""
    names = "for name in streampca.__all__: getattr(streampca, name)"
    imported, named, drawn = loaded_by("import streampca", names, A_PICTURE)
    assert not (HEAVY | OF_COMMANDS | {"yaml"}) & imported
    assert {"scipy", "zarr", "sklearn"} <= named
    assert not ({"dask", "xarray", "matplotlib", "tifffile"} | OF_COMMANDS) & named
    assert {"matplotlib", "False"} <= drawn, "and pyplot is not"


@pytest.mark.slow
def test_command_line_starts_light():
    """``streampca --help`` waits for nothing but click, and commands that only look at options for no numerics."""
    show_help = "from streampca.cli.main import cli; cli.main(['--help'], standalone_mode=False)"
    *_, helped = loaded_by(f"import io, contextlib\nwith contextlib.redirect_stdout(io.StringIO()): {show_help}")
    assert not ((HEAVY | OF_COMMANDS | {"yaml", "numpy"}) - {"click"}) & helped
    assert not ((HEAVY | OF_COMMANDS | {"yaml", "numpy"}) - {"click"}) & loaded_by("import streampca.cli.commands")[0]


@pytest.mark.slow
def test_fits_load_no_manifolds():
    """They are half of all imports, with the parts of scipy that they take."""
    show = "print(*(name for name in sys.modules if name.startswith('streampca.manifold')))"
    loaded, *_ = loaded_by(f"import streampca.cli.pipeline, streampca.cli.terminal; {show}")
    assert loaded == set()


def test_public_names_are_where_they_say():
    for name in streampca.__all__:
        assert getattr(streampca, name) is not None
    assert set(streampca.__all__) <= set(dir(streampca))
    with pytest.raises(AttributeError, match="has no attribute 'fti'"):
        streampca.fti  # noqa: B018


def test_public_classes_have_names_of_their_own():
    places = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in re.findall(r"^class ([^\W_]\w*)", path.read_text(), re.MULTILINE):
            places.setdefault(name, []).append(str(path.relative_to(PACKAGE)))
    assert len(places) > 100
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
