r"""
Cells in several colours
========================

Microscopes write a stack for each dye. An image with its channels is one sample: a component then says how the channels
vary together. The cells here are made up: their nuclei grow as their membranes fade, and a third dye moves from the
nucleus outwards on its own.
"""

# %%
# An OME-TIFF with names of channels and the size of a pixel, as microscopes write it.

import os
import tempfile

import matplotlib.pyplot as plt
import numpy as np
import tifffile

import streampca

random = np.random.default_rng(2)
y, x = np.mgrid[-1:1:48j, -1:1:48j]
radius, names = np.hypot(x, y), ["nucleus", "membrane", "vesicles"]
grown, moved = random.uniform(-1, 1, (2, 300, 1, 1))
nucleus = 1 / (1 + np.exp((radius - 0.35 - 0.12 * grown) / 0.05))
membrane = (1 - 0.5 * grown) * np.exp(-(((radius - 0.75) / 0.06) ** 2))
vesicles = np.exp(-(((radius - 0.5 - 0.15 * moved) / 0.1) ** 2))
cells = 200 * np.stack([nucleus, membrane, vesicles], axis=1) + random.normal(0, 25, (300, 3, 48, 48)) + 100
folder = tempfile.mkdtemp()
path = os.path.join(folder, "cells.ome.tif")
about = {"axes": "TCYX", "Channel": {"Name": names}, "PhysicalSizeX": 0.2, "PhysicalSizeY": 0.2}
tifffile.imwrite(path, cells.clip(0).astype(np.uint16), photometric="minisblack", metadata=about)

# %%
# Three channels are one sample. The model keeps their names, and one channel is opened by its name.

model = streampca.fit(path, n_components=2)
print(model, model.coordinates["c"].values)
print(streampca.open_collection(path, sel={"c": "membrane"}))

# %%
# Each component in all channels: the first is of the vesicles alone, the second of the nucleus and the membrane, which
# change together. ``streampca export`` writes them for Fiji, with names and sizes.

images = np.concatenate([model.mean[None], model.components])
titles = ["mean", *(f"component {at}: {share:.0%}" for at, share in enumerate(model.explained_variance_ratio, 1))]
figure, panels = plt.subplots(3, 3, figsize=(7.5, 7.5), layout="constrained")
for row, image, title in zip(panels, images, titles, strict=True):
    most = np.abs(image).max()
    how = {"cmap": "gray"} if title == "mean" else {"cmap": "RdBu_r", "vmin": -most, "vmax": most}
    for ax, channel, name in zip(row, image, model.coordinates["c"].values, strict=True):
        ax.imshow(channel, **how)
        ax.set(xticks=[], yticks=[], title=name)
    row[0].set_ylabel(title)
plt.show()
