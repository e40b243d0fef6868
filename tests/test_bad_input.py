"""Mistakes and damaged files: each refused in one line, with a remedy that works, and nothing lost."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tifffile
import zarr
from PIL import Image
from shell import DATA, diagonal, pictures, refused, succeeded

import streampca
from streampca import Preparation, plot
from streampca.errors import RequestError

ODD = DATA / "odd"


def folder_of(images, name="pictures"):
    """Write images as PNG files 0.png, 1.png, ..."""
    os.makedirs(name, exist_ok=True)
    for number, image in enumerate(images):
        Image.fromarray(image).save(f"{name}/{number}.png")
    return name


def refused_fit(source, *options, code=1):
    line = refused("fit", source, *options, "-o", "never.zarr", code=code)
    assert not os.path.lexists("never.zarr")
    return line


# -- what is analysed


def test_missing_path_names_the_nearest(source):
    line = refused_fit("imagse.npy")
    assert "imagse.npy does not exist" in line
    succeeded("fit", re.search(r"Did you mean '(.*?)'", line)[1], "-o", "m.zarr", "-q")
    assert "no 'work' in" not in refused("info", "pictures/1.png")
    assert "matches no files" in refused("info", "*.png")


def test_empty_folder(here):
    os.mkdir("empty")
    assert "empty matches no files" in refused_fit("empty")
    Path("empty/notes.txt").write_text("none")
    assert ".txt (1)" in refused_fit("empty")


def test_one_sample(here):
    np.save("stack.npy", pictures(20)[None])
    line = refused_fit("stack.npy")
    assert "stack.npy has one sample" in line
    assert "by --sample-axes 2,3." in line
    succeeded("fit", "stack.npy", "--sample-axes", "2,3", "-k", 2, "-o", "m.zarr", "-q")
    assert streampca.load("m.zarr").n_samples == 20
    assert "one sample" in refused_fit(folder_of(pictures(1)))


@pytest.mark.parametrize("dtype", ["u1", "f4", "f8"])
def test_constant_data(here, dtype):
    np.save("constant.npy", np.full((30, 5, 5), 0.1 if dtype != "u1" else 9, dtype))
    assert "constant.npy has no variance: all 30 samples are equal" in refused_fit("constant.npy")


@pytest.mark.parametrize(("dtype", "bad"), [("f4", np.nan), ("f8", -np.inf)])
def test_values_that_are_no_numbers(here, bad, dtype):
    values = pictures(30).astype(dtype)
    np.save("good.npy", values)
    values[17, 2, 3] = bad
    np.save("holes.npy", values)
    line = refused_fit("holes.npy", "-k", 2)
    assert "sample 17 of holes.npy" in line

    mask = np.ones((8, 7), bool)
    mask[2, 3] = False
    np.save("mask.npy", mask)
    assert "mask the pixels" in line
    succeeded("fit", "holes.npy", "-k", 2, "--mask", "mask.npy", "-o", "masked.zarr", "-q")
    succeeded("fit", "holes.npy", "-k", 2, "--missing", "drop-samples", "-o", "fewer.zarr", "-q")
    succeeded("fit", "good.npy", "-k", 2, "-o", "m.zarr", "-q")
    for suffix in ("zarr", "npy", "csv"):
        assert "sample 17 of holes.npy" in refused("transform", "m.zarr", "holes.npy", "-o", f"s.{suffix}")
    assert not [name for name in os.listdir() if name.startswith("s.")]


def test_file_with_no_number_is_named(here):
    os.mkdir("scans")
    for number, image in enumerate(pictures(12).astype("f4")):
        image[0, 0] = np.nan if number == 10 else 0
        tifffile.imwrite(f"scans/s{number}.tif", image)
    assert "scans/s10.tif" in refused_fit("scans", "-k", 2)
    os.remove("scans/s10.tif")
    succeeded("fit", "scans", "-k", 2, "-o", "m.zarr", "-q")


@pytest.mark.parametrize(("odd", "count"), diagonal(["size", "colour", "depth"], [9, 300]))
def test_mixed_images(here, odd, count):
    folder = folder_of(pictures(count, 4, 5))
    wrong = {
        "size": np.zeros((4, 6), np.uint8),
        "colour": np.zeros((4, 5, 3), np.uint8),
        "depth": np.zeros((4, 5), np.uint16),
    }[odd]
    Image.fromarray(wrong).save(f"{folder}/3.png")
    line = refused_fit(folder, "-k", 2)
    shape = " x ".join(map(str, wrong.shape))
    if odd != "depth" and count == 9:
        assert f"several sizes, e.g. {folder}/0.png (4 x 5) and {folder}/3.png ({shape}); give --resize" in line
    else:
        assert f"{folder}/3.png is {shape} {wrong.dtype}" in line
        assert "(4 x 5 uint8)" in line
    Image.fromarray(np.zeros((4, 5), np.uint8)).save(f"{folder}/3.png")
    succeeded("fit", folder, "-k", 2, "-o", "m.zarr", "-q")


@pytest.mark.parametrize("keep", [0, 20, 0.7])
def test_picture_that_breaks_off(here, keep):
    folder = folder_of(pictures(70, 16, 16))
    path = Path(folder, "33.png")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole)) if keep < 1 else keep])
    assert "pictures/33.png" in refused_fit(folder, "-k", 2)
    os.remove(path)
    succeeded("fit", folder, "-k", 2, "-o", "m.zarr", "-q")


@pytest.mark.skipif(not ODD.is_dir(), reason="odd is not in ../shared/data")
@pytest.mark.parametrize("name", [
    "pillow_broken.png", "pillow_broken_data_stream.png", "pillow_decompression_bomb.gif",
    "pillow_libtiff_segfault.tif", "pillow_negative_size.ppm", "pillow_no_palette.gif", "pillow_pil_sample_cmyk.jpg",
    "pillow_png_decompression_dos.png", "pillow_seek_too_large.tif", "pillow_shortfile.bmp",
    "pillow_syntax_num_frames_zero.png", "skimage_truncated.jpg",
])  # fmt: skip
def test_broken_pictures_of_the_world(here, name):
    folder = folder_of(pictures(4))
    shutil.copy(ODD / name, folder)
    assert f"{folder}/{name}" in refused_fit(folder, "-k", 2)


class Trap:
    """Pickles as a call that makes a file."""

    def __reduce__(self):
        return Path.touch, (Path("sprung").absolute(),)


def test_pickles_are_never_opened(here):
    trap = np.array([Trap(), Trap()], dtype=object)
    np.save("trap.npy", trap, allow_pickle=True)
    np.savez("trap.npz", x=trap)
    Path("bare.npy").write_bytes(pickle.dumps(Trap()))
    np.save("images.npy", pictures())
    for path in ("trap.npy", "trap.npz", "bare.npy"):
        line = refused_fit(path)
        assert path in line
        assert path in refused_fit("images.npy", "--mask", path)
        labels = f"{path}:x" if path.endswith("npz") else path
        assert path in refused("info", "images.npy", "--labels", labels)
    assert "trap.npz" in refused_fit("images.npy", "--labels", "trap.npz:x")
    assert not os.path.exists("sprung")
    with contextlib.suppress(Exception):
        np.load("trap.npy", allow_pickle=True)
    assert os.path.exists("sprung"), "the trap works"


def test_long_doubles(here):
    np.save("odd.npy", np.zeros((4, 5), "g"))
    assert "save it again as float64" in refused_fit("odd.npy")


# -- what is asked


def test_more_components_than_there_are(source):
    line = refused_fit(source, "-k", 100, code=2)
    most = re.search(r"n_components=100 exceeds (\d+)", line)[1]
    assert int(most) == 11
    succeeded("fit", source, "-k", most, "-o", "m.zarr", "-q")


@pytest.mark.parametrize("k", ["3", "0.9"])
def test_budget_that_is_too_small(here, k):
    np.save("images.npy", pictures(300, 20, 20))
    line = refused_fit("images.npy", "-k", k, "--memory", "1MiB")
    assert "memory allows 1.0 MiB (as asked); the largest share is" in line
    least = re.search(r"at least (\w+)", line)[1]
    below = f"{int(least.removesuffix('MiB')) - 1}MiB"
    refused_fit("images.npy", "-k", k, "--memory", below)
    succeeded("fit", "images.npy", "-k", k, "--memory", least, "-o", "m.zarr", "-q")
    line = refused("transform", "m.zarr", "images.npy", "-o", "s.npy", "--memory", "1MiB")
    least = re.search(r"at least (\w+)", line)[1]
    succeeded("transform", "m.zarr", "images.npy", "-o", "s.npy", "--memory", least, "-q")


def test_remedies_for_a_large_p_work(here):
    np.save("images.npy", pictures(30, 40, 40))
    asked = ("images.npy", "-k", 2, "--method", "covariance", "--memory", "16MiB")
    assert "bin, crop or mask" in refused_fit(*asked)
    succeeded("fit", *asked, "--bin", 4, "-o", "m.zarr", "-q")


NUMBERS = "give a whole number of at least 1, a number above 0 and below 1, elbow, mp, mle or all (number of components"


@pytest.mark.parametrize(("options", "says"), [
    (["--method", "covarianse"], "auto, covariance, dual, "),
    (["--tol", "0"], "--tol 0: give a number above 0 and below 1 or null (residual of a"),
    (["--tol", "nan"], "--tol nan: give a number above 0 and below 1 or null (residual of a"),
    (["--normalize", "nom"], "'--normalize': 'nom' is not one of 'mean', 'norm', 'ratio'. See: "),
    (["-k", "1.0"], f"--n-components 1.0: {NUMBERS}"),
    (["-k", "abc"], f"--n-components abc: {NUMBERS}"),
    (["-k", "0"], "--n-components 0: give a whole number of at least 1, a number above 0 and below 1"),
    (["-k", "nan"], "--n-components nan: give a whole number of at least 1"),
    (["--patches", "8x"], "HEIGHTxWIDTH; write for example 64x64"),
    (["--samples", "8"], "START:STOP or START:STOP:STEP"),
    (["--resize", "big"], "HEIGHTxWIDTH"),
    (["--where", "label=9"], "--labels"),
    (["--part", "0/3"], "part 0/3 does not exist; parts count from 1, as in 1/3 to 3/3."),
    (["--part", "3"], "part '3' is not PART/PARTS"),
    (["--tol", "small"], "--tol small: give a number above 0 and below 1 or null (residual of a"),
    (["--max-passes", "1.5"], "--max-passes 1.5: give a whole number of at least 1"),
    (["--precision", "half"], "'auto', 'single', 'double'"),
    (["--memory", "lots"], "such as 512MiB or 2GiB"),
    (["--memory", "2.5"], "'2.5' has no unit and would be less than 1 MiB; write 2.5GiB or 2.5MiB, or"),
    (["--sample-axes", "1,9"], "axis 9"),
    (["--sample-axes", "y,x"], "'y'"),
    (["--select", "0"], "c=0 or z=10:20"),
    (["--select", "0=a"], "10:100"),
    (["--select", "c=Alexa 488"], "; to select by value, give --sel 'c=Alexa 488'."),
    (["--samples", "0:9", "--samples", "0:5"], "--samples takes one value and is given 2 times; keep one."),
    (["--select", "0=99"], "99"),
    (["--select", "t=0"], "'t'"),
    (["--crop", "3"], "10:100"),
    (["--crop", "0:99,0:5"], "0:99"),
    (["--crop", "6:2"], "crop 6:2 takes nothing of an axis of 8 pixels"),
    (["--crop", "0:2,0:2,0:2"], "8 x 7"),
    (["--bin", "9"], "smaller bin"),
    (["--grey"], "Leave it out"),
    (["--key", "images"], "leave key out"),
    (["--random-state", "-1"], "--random-state -1: give a whole number of at least 0"),
    (["--dtype", "u1"], "not one of 'uint8'"),
])  # fmt: skip
def test_options_that_do_not_fit(source, options, says):
    assert says in refused_fit(source, *options, code=2)


def test_labels_that_are_not_there(source):
    """The refusal names the missing file before it explains columns of tables."""
    for labels in ("missing.csv", "missing.csv:digit"):
        line = refused_fit(source, "--labels", labels)
        assert line.startswith(f"{labels.removesuffix(':digit')} does not exist; check the path")


def test_masks_that_do_not_fit(source):
    np.save("small.npy", np.ones((3, 3), bool))
    np.save("none.npy", np.zeros((8, 7), bool))
    np.save("grey.npy", np.full((8, 7), 0.5))
    assert "3 x 3" in refused_fit(source, "--mask", "small.npy", code=2)
    assert "leaves no pixel" in refused_fit(source, "--mask", "none.npy", code=2)
    assert "boolean" in refused_fit(source, "--mask", "grey.npy")
    assert "nowhere.npy" in refused_fit(source, "--mask", "nowhere.npy")


@pytest.mark.parametrize(("words", "says"), [
    (["plan"], "give either SOURCE or --shape"),
    (["plan", "--shape", "five"], "60000x28x28"),
    (["plan", "--shape", "10x9", "--dtype", "object"], "not one of 'uint8'"),
    (["plan", "--shape", "10x9", "--dtype", "uint9"], "not one of 'uint8'"),
    (["plan", "--shape", "9999999999x9999999999"], "shape of a part"),
    (["plan", "--shape", "10x9", "-k", "10"], "at most that"),
    (["frobnicate"], "No such command"),
    (["fit", "images.npy"], "--output"),
    (["fit", "-o", "x"], "SOURCE"),
])  # fmt: skip
def test_commands_that_are_none(here, words, says):
    assert says in refused(*words, code=2)


@pytest.mark.parametrize(("text", "says"), [
    ("collection: {sorce: images.npy}", "collection.sorce is not a key of run files. Did you mean collection.source?"),
    ("collection: {source: images.npy}\nstructure: 3", "'structure' is not known. Known here: collection, prepare"),
    ("collection: {source: a, source: b}", "'source' is given twice, the second time in line 1"),
    ("collection:\n  source: [a\n", "is not YAML"),
    ("collection: {source: ${HOME}/x.npy}", "correct that line: put the text that holds ${...} in quotation marks."),
    ("? [a, b]\n: c", "unhashable key in line 1"),
    ("- images.npy", "holds no keys"),
    ("model: {n_components: 3}", "'collection.source' is missing"),
    ("collection: {source: images.npy}", "the run writes nothing"),
    ("collection: {source: images.npy}\noutput: {transform: true, model: m.zarr}", "need output.directory"),
    ("collection: images.npy", "collection = 'images.npy' is not a section"),
    ("collection: {source: images.npy}\nmodel: {n_components: many}", "n_components = 'many': give a whole"),
    ("collection: {source: images.npy}\nmodel: {n_components: yes}", "model.n_components = True: give a whole number"),
    ("collection: {source: images.npy}\nmodel: {n_components: .nan}", "model.n_components = nan: give a whole number"),
    ("collection: {source: images.npy}\nprepare: {crop: [[0, 1, 2]]}", "prepare.crop"),
    ("collection: {source: images.npy, select: {0: [1, 2, 3]}}", "collection.select"),
    ("collection: {source: no}", "collection.source = False"),
    ("collection: {source: images.npy}\noutput: {report: perhaps}", "output.report = 'perhaps'"),
    ("collection: {source: images.npy}\nrun: {workers: no}", "run.workers = False: give a whole number"),
    ("1: 2\ncollection: {source: images.npy}", "key 1 is not known"),
    ("collection: {source: !!python/object/apply:os.mkdir [sprung]}", "a value with the tag !!python"),
    (b"\xff\xfe\x00collection", "give a text file in YAML"),
])  # fmt: skip
def test_run_files_that_are_none(source, text, says):
    Path("run.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert says in refused("run", "run.yaml", code=2)
    assert sorted(os.listdir()) == ["images.npy", "run.yaml"]


@pytest.mark.parametrize(("change", "says"), [
    ("model.n_componets=3", "Did you mean model.n_components?"),
    ("n_components=3", "Did you mean output.n_components or model.n_components?"),
    ("n_components", "model.n_components=20"),
    ("collection.source.path=a", "source is a value, not a section"),
    ("model.n_components={", "is not YAML"),
    ("...=1", "key '' is not known"),
])  # fmt: skip
def test_overrides_that_are_none(source, change, says):
    Path("run.yaml").write_text("collection: {source: images.npy}")
    assert says in refused("run", "run.yaml", "--set", change, code=2)


def test_missing_run_file(here):
    assert "nowhere.yaml does not exist" in refused("run", "nowhere.yaml", code=2)


# -- models


def test_what_is_no_model(source, model):
    assert "does not exist" in refused("inspect", "nowhere.zarr")
    remedy = "Give a folder written by 'streampca fit'."
    assert refused("inspect", "images.npy") == f"images.npy is not a model: it is a file. {remedy}"
    zarr.save_array("array.zarr", pictures())
    assert refused("inspect", "array.zarr") == f"array.zarr is not a model: it is a Zarr array. {remedy}"
    os.mkdir("bare.zarr")
    assert refused("inspect", "bare.zarr") == f"bare.zarr is not a model: it has no zarr.json. {remedy}"
    zarr.save("plain.zarr", pictures())
    assert "plain.zarr" in refused("inspect", "plain.zarr")
    succeeded("transform", model, source, "-o", "scores.zarr", "-q")
    assert "'scores', not a model" in refused("inspect", "scores.zarr")
    os.mkdir("empty.zarr")
    assert "empty.zarr" in refused("transform", "empty.zarr", source, "-o", "s.npy")


def test_collections_of_another_shape_or_kind(source, model):
    np.save("wide.npy", pictures(5, 8, 9))
    np.save("fractions.npy", pictures() / 255)
    assert "8 x 9" in refused("transform", model, "wide.npy", "-o", "s.npy")
    assert "float64" in refused("transform", model, "fractions.npy", "-o", "s.npy")
    assert "between 1 and 3" in refused("reconstruct", model, source, "--n-components", 4, "-o", "r.npy", code=2)


# -- what is written


@pytest.mark.parametrize(("options", "says"), [
    ({"bin": 2}, r"preparation=Preparation\(bin=...\)"),
    ({"n_component": 2}, "'n_component' is not an option. Did you mean 'n_components'"),
    ({"sample_axis": 0}, "Did you mean 'sample_axes'"),
    ({"k": 3}, "'k' is not an option. Did you mean 'n_components'"),
    ({"seed": 1}, "Did you mean 'random_state'"),
])  # fmt: skip
@pytest.mark.parametrize("function", [streampca.fit, streampca.plan])
def test_keywords_that_are_none(function, options, says):
    with pytest.raises(TypeError, match=says):
        function(pictures(), **options)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: streampca.PCA(k=3), "'k' is not a parameter of PCA. Did you mean 'n_components'"),
        (lambda: streampca.Isomap(n_neighbours=3), "Did you mean 'n_neighbors'"),
        (lambda: streampca.Preparation(bins=2), "Did you mean 'bin'"),
        (lambda: streampca.Run(mem="1 GiB"), "Did you mean 'memory'"),
        (lambda: streampca.open_collection(pictures(), keys="a"), "Did you mean 'key'"),
    ],
)
def test_parameters_that_are_none(make, says):
    with pytest.raises(TypeError, match=says):
        make()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("fit", "--seed", 1), "Did you mean '--random-state'"),
        (("fit", "--jobs", 2), "Did you mean '--workers'"),
        (("neighbors", "-k", 2), "Did you mean '--n-neighbors'"),
    ],
)
def test_options_that_are_none(words, says, source):
    assert says in refused(words[0], source, *words[1:], "-o", "m.zarr", code=2)


@pytest.mark.parametrize(("make", "says"), [
    (lambda: streampca.fit(pictures(), preparation={"bin": 2}), r"give such as Preparation\(bin=2\)"),
    (lambda: streampca.Preparation(crop=(0, 10)), r"crop \(0, 10\) is not a range of whole numbers for each axis"),
])  # fmt: skip
def test_preparations_that_are_none(make, says):
    with pytest.raises(streampca.StreampcaError, match=says):
        make()


def test_collections_say_what_they_are(source):
    assert repr(streampca.open_collection(source)).endswith("('images.npy': 12 samples of 8 x 7, uint8)")


def test_missing_folders_are_made(source, model):
    for output in ("new/deep/scores.npy", "new/scores.csv", "new/scores.zarr"):
        succeeded("transform", model, source, "-o", output, "-q")
        assert os.path.exists(output)
    succeeded("fit", source, "-k", 2, "-o", "newer/deep/m.zarr", "-q")


def test_folder_that_is_a_file(source, model):
    for command in (["fit", source, "-k", 2], ["transform", model, source], ["reconstruct", model, source]):
        line = refused(*command, "-o", f"{source}/out.zarr")
        assert "images.npy is not a folder" in line


# -- in Python


def fitted():
    return streampca.fit(pictures(), n_components=2)


def opened():
    return streampca.open_collection(pictures())


@pytest.mark.parametrize(("call", "says"), [
    (lambda: streampca.fit(pictures(), streampca.PCA(random_state="a")), "random_state = 'a': give a whole"),
    (lambda: streampca.fit(pictures(), listener="print"), "listener = 'print': give a function or None"),
    (lambda: streampca.merge([], listener="print"), "listener = 'print': give a function"),
    (lambda: streampca.open_collection(pictures(), listener="print"), "listener 'print' is not a function"),
    (lambda: streampca.write_report(fitted(), "r.html", listener="print"), "listener = 'print': give a function"),
    (lambda: streampca.write_report(fitted(), "r.html", examine="3"), "examine '3' is not a whole number of at least"),
    (lambda: fitted().write_scores(pictures(), "s.npy", listener=1), "listener = 1: give a function"),
    (lambda: fitted().write_reconstruction(pictures(), "i.npy", listener=1), "listener = 1: give a function"),
    (lambda: Preparation(bin="2"), "bin '2' is not a whole number of at least 1; use for example 2"),
    (lambda: Preparation(grey="no"), "grey 'no' is neither True nor False"),
    (lambda: streampca.merge([pictures(), pictures()]), "a ndarray is not a model; merge takes models and the folders"),
    (lambda: streampca.fit(pictures(), part=(1.5, 3)), "is not PART/PARTS"),
    (lambda: opened()[12], "sample 12 of numpy array is not there: it has 12, numbered 0 to 11"),
    (lambda: opened()[[0, -13]], "sample -13 of numpy array is not there"),
    (lambda: opened()[3:3], "slice(3, 3, None) takes none of the 12 samples of numpy array"),
    (lambda: opened()[np.zeros(12, bool)], "takes none of the 12 samples"),
    (lambda: opened()[[1, 4, 1]], "sample 1 of numpy array is taken twice"),
    (lambda: opened()["a"], "cannot be taken by <U1 values of shape (); give a whole number, a slice"),
    (lambda: opened()[True], "cannot be taken by bool values"),
    (lambda: opened()[[True, False]], "or 12 bools"),
    (lambda: opened()[1.5], "cannot be taken by float64 values"),
    (lambda: opened()[[[0, 1]]], "of shape (1, 2)"),
    (lambda: opened()[0, 1, 2, 3], "is of 12 x 8 x 7 and cannot be indexed by (0, 1, 2, 3); give samples and then"),
    (lambda: opened()[None], "cannot be indexed by (None,)"),
    (lambda: opened()[..., 0, ...], "cannot be indexed by (Ellipsis, 0, Ellipsis)"),
    (lambda: opened()[:, [0, 1]], "are taken by whole numbers and slices; take samples first"),
    (lambda: opened()[:, 8], "pixel 8 of numpy array is not there: its samples are 8 x 7"),
    (lambda: plot.scores(fitted(), opened()), "scores are a ArrayCollection, not an array of shape (n, k); give model"),
    (lambda: plot.scores(fitted(), [[1.0, 2.0]]), "scores are a list, not an array"),
    (lambda: plot.nearest_to_quantiles(opened()), "give model.transform(samples)"),
])  # fmt: skip
def test_calls_that_make_no_sense(here, call, says):
    with pytest.raises(RequestError) as refused:
        call()
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_contract_suites_do_not_run_without_assertions():
    """python -O leaves out assert statements, so that every contract would pass."""
    done = subprocess.run([sys.executable, "-O", "-c", "import streampca.testing"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: streampca.testing checks by assert statements")
