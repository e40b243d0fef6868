r"""
Parts on many machines
======================

The jobs of an array on a cluster each fit a part of a collection, and one more merges their models: no image is read
twice, and the answer is that of a single fit. Here four parts are fitted one after another, and merged one by one.
"""

# %%
# Each part keeps the statistic that merging adds up.

import os
import tempfile

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import streampca

folder = tempfile.mkdtemp()
source = os.path.join(folder, "digits.npy")
np.save(source, load_digits().images.astype(np.uint8))
parts = [os.path.join(folder, f"part{number}.zarr") for number in (1, 2, 3, 4)]
for number, path in enumerate(parts, 1):
    streampca.fit(source, n_components=8, part=f"{number}/4", output=path)

# %%
# The whole from its parts has the bits of a single fit: sums of whole numbers are exact, in whatever order.

merged = streampca.merge(parts, output=os.path.join(folder, "whole.zarr"))
single = streampca.fit(source, n_components=8)
assert np.array_equal(merged.components, single.components)
print(merged)

# %%
# Components of each part differ by what its digits happen to be; the last row is of them all.

models = {f"part {number} of 4": streampca.load(path) for number, path in enumerate(parts, 1)}
models["merged"] = merged
figure, panels = plt.subplots(5, 8, figsize=(9, 6.2), layout="constrained")
for line, (name, model) in zip(panels, models.items(), strict=True):
    for ax, component in zip(line, model.components, strict=True):
        most = np.abs(component).max()
        ax.imshow(component, cmap="RdBu_r", vmin=-most, vmax=most)
        ax.set(xticks=[], yticks=[])
    line[0].set_title(name, loc="left", fontsize=10)
plt.show()
