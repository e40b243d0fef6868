r"""
Cells in a calcium movie
========================

Frames of a movie are a collection: components are cells that light up together, and their scores when they do. The
movie here is made up of 40 cells in four groups, each with its own bursts, under noise that hides them in any single
frame. The first argument may be a movie of your own, such as a TIFF stack.
"""

# %%
# Cells are blobs that light up at once and fade within seconds. The movie is a file of 600 frames.

import os
import sys
import tempfile

import matplotlib.pyplot as plt
import numpy as np
import tifffile

import streampca

random = np.random.default_rng(1)
y, x = np.mgrid[:96, :128]
places, group = random.uniform((8, 8), (88, 120), (40, 2)), np.arange(40) % 4
blobs = np.exp(-((y - places[:, :1, None]) ** 2 + (x - places[:, 1:, None]) ** 2) / 18)
bursts = random.random((600, 4)) < 0.02
fading = np.exp(-np.arange(60) / 12)
light = np.stack([np.convolve(bursts[:, at], fading)[:600] for at in range(4)], axis=1)
bright = light[:, group] * random.uniform(0.6, 1.4, 40)
movie = random.poisson(20 + 9 * np.tensordot(bright, blobs, 1)).astype(np.uint16)
path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(tempfile.mkdtemp(), "movie.tif")
if len(sys.argv) == 1:
    about = {"axes": "TYX", "unit": "um", "finterval": 0.1}
    tifffile.imwrite(path, movie, imagej=True, resolution=(1 / 0.8, 1 / 0.8), metadata=about)

# %%
# Four components, turned so that each is bright in few places (varimax). Pixels have the size that the file says.

model = streampca.fit(path, n_components=4, memory="256 MiB")
frames = streampca.open_collection(path)
turned = model.rotate()
scores = turned.transform(np.asarray(frames))
times = frames.sample_coordinates()["t"].values if "t" in frames.sample_coordinates() else np.arange(len(scores))
y_size = model.coordinates["y"].values[1] if "y" in model.coordinates else 1

# %%
# A single frame, the four components, and when each lights up.

figure = plt.figure(figsize=(10, 6), layout="constrained")
panels = figure.subplot_mosaic([[*"fabcd"], ["t"] * 5], height_ratios=(1, 1.3))
panels["f"].imshow(np.asarray(frames[50]), cmap="gray")
panels["f"].set_title("a frame")
for at, key in enumerate("abcd"):
    component = turned.components[at]
    most = np.abs(component).max()
    panels[key].imshow(component * np.sign(component.sum()), cmap="RdBu_r", vmin=-most, vmax=most)
    panels[key].set_title(f"component {at + 1}", color=f"C{at}")
    line = scores[:, at] * np.sign(component.sum())
    panels["t"].plot(times, line / np.ptp(line) - at, color=f"C{at}", linewidth=0.9)
for key in "fabcd":
    panels[key].set(xticks=[], yticks=[])
panels["f"].plot([5, 5 + 20 / y_size], [frames.sample_shape[0] - 6] * 2, color="w", linewidth=3)
panels["t"].set(xlabel="time (s)", yticks=[], title="scores: the bursts of each group")
plt.show()
