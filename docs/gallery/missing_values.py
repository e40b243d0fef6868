r"""
A sea under clouds
==================

Clouds hide four tenths of this sea. Components can be fitted on the values that are there, by the EM algorithm of
probabilistic PCA, and carry them to the others.
"""

# %%
# Five patterns that come and go, and clouds that are somewhere else every day.

import matplotlib.pyplot as plt
import numpy as np
from scipy.ndimage import gaussian_filter

import streampca

random = np.random.default_rng(0)
patterns = gaussian_filter(random.normal(size=(5, 40, 60)), (0, 6, 9), mode="wrap")
patterns /= patterns.std(axis=(1, 2), keepdims=True)
course = gaussian_filter(random.normal(size=(200, 5)), (3, 0)) * [9, 7, 5, 4, 3]
true = np.tensordot(course, patterns, 1)
hidden = gaussian_filter(random.normal(size=true.shape), (0, 3, 4), mode="wrap") > 0.015
seen = np.where(hidden, np.nan, true + random.normal(0, 0.3, true.shape)).astype(np.float32)

# %%
# Scores are those that fit the pixels seen best. To fill the holes with each pixel's mean first, and fit that, takes
# the filling for values.

model = streampca.fit(seen, streampca.PCA(5, missing="em"))
filled = model.reconstruct(seen)
first = np.where(hidden, np.nanmean(seen, axis=0), seen).astype(np.float32)
guessed = streampca.fit(first, n_components=5).reconstruct(first)
error, guess = (np.sqrt(np.mean((found - true)[hidden] ** 2)) for found in (filled, guessed))
print(f"{hidden.mean():.0%} hidden; rms error there {error:.2f} by EM, {guess:.2f} filled with means first")

# %%
# Three days: what was seen, what EM makes of it, what filling first does, and what was there.

rows = {"seen": seen, f"EM, error {error:.2f}": filled, f"filled first, {guess:.2f}": guessed, "true": true}
figure, panels = plt.subplots(3, 4, figsize=(10, 5.2), layout="constrained")
for line, day in zip(panels, (30, 90, 150), strict=True):
    most = np.abs(true[day]).max()
    for ax, images in zip(line, rows.values(), strict=True):
        ax.imshow(images[day], cmap="RdBu_r", vmin=-most, vmax=most)
        ax.set_facecolor("0.75")
        ax.set(xticks=[], yticks=[])
    line[0].set_ylabel(f"day {day}")
for ax, name in zip(panels[0], rows, strict=True):
    ax.set_title(name)
plt.show()
