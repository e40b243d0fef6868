"""Questions of somebody who knows the field and sees only the listing of files, and where the answer stands."""

import ast
from pathlib import Path

import pytest

import streampca

PACKAGE = Path(streampca.__file__).parent

# question, file, and a function or class defined there that answers it
QUESTIONS = [
    ("How are the defaults and ranges of Isomap's parameters declared?", "kinds/manifold.py", "IsomapDescription"),
    ("What does `Run` hold?", "kinds/run.py", "Run"),
    ("Which options say how a source is opened?", "kinds/opening.py", "Opening"),
    ("Where does a fit's front half open, narrow and weigh the source?", "fitting/open_fit.py", "open_fit"),
    ("Which code adds new samples to a stored model?", "fitting/update.py", "update"),
    ("Where is the randomisation test of HSIC?", "fitting/permutation_test.py", "permuted_kernels"),
    ("Where is a step of block Lanczos taken?", "eigensolvers/lanczos.py", "start_lanczos"),
    ("Where is the bound on variance that was missed?", "eigensolvers/omitted_variance.py", "rest_of_basis"),
    ("Which accumulator holds X^T X, centred?", "accumulators/scatter.py", "Scatter"),
    ("Where is the sketch for unending batches?", "accumulators/frequent_directions.py", "FrequentDirections"),
    ("How are components rotated (varimax, promax)?", "models/rotation.py", "RotatedPCAModel"),
    ("Where is the likelihood of probabilistic PCA?", "models/likelihood.py", "DensityModel"),
    ("Where are the checksums of a stored model checked?", "storage/integrity.py", "read_model"),
    ("Which code writes scores as CSV, npy or Parquet?", "storage/writers.py", "_CsvWriter"),
    ("Where are geodesic distances turned into coordinates?", "manifold/isomap.py", "Scaling"),
    ("Where is the scree plot?", "plot/spectrum.py", "scree"),
    ("Where is a file that occurs twice in a folder found?", "readers/duplicates.py", "repeats_to_leave_out"),
    ("Where are several files joined to one collection?", "readers/views/joined.py", "Joined"),
    ("Where is the plan of the Gram-matrix method?", "planning/dual.py", "DualSizes"),
    ("Where are variables in a run file replaced?", "cli/variables.py", "replaced"),
]


@pytest.mark.parametrize(("question", "file", "symbol"), QUESTIONS, ids=[question for question, _, _ in QUESTIONS])
def test_the_answer_stands_where_the_name_says(question, file, symbol):
    tree = ast.parse((PACKAGE / file).read_text())
    assert symbol in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
