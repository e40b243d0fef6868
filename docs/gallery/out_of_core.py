r"""
More data than memory
=====================

A collection on disk is read in blocks that the budget allows, and the answer is the same for every budget. Here 72 MiB
of images are fitted within 40 and 512 MiB. The budget decides the blocks, and the plan says so beforehand.
"""

# %%
# Images in a Zarr array, made block by block: mixtures of 30 patterns under noise.

import os
import tempfile
import time

import matplotlib.pyplot as plt
import numpy as np
import zarr

import streampca

random = np.random.default_rng(0)
y, x = np.mgrid[-1:1:24j, -1:1:24j]
patterns = np.stack([np.cos(a * np.pi * x + b) * np.cos(b * np.pi * y + a) for a, b in random.uniform(0, 4, (30, 2))])
noise = random.normal(128, 8, (2048, 24, 24))
path = os.path.join(tempfile.mkdtemp(), "images.zarr")
array = zarr.create_array(path, shape=(131072, 24, 24), chunks=(2048, 24, 24), dtype=np.uint8)
for start in range(0, 131072, 2048):
    images = np.tensordot(random.normal(0, 9, (2048, 30)), patterns, 1) + random.permutation(noise)
    array[start : start + 2048] = images.clip(0, 255).astype(np.uint8)

# %%
# The plan for the smallest budget.

budgets = ["40 MiB", "512 MiB"]
print(streampca.plan(path, n_components=30, memory=budgets[0]))

# %%
# Each fit, the time it took, and how far its components are from those of the larger budget, as the sine of the largest
# angle between the spaces of both.

models, seconds = [], []
for budget in budgets:
    began = time.perf_counter()
    models.append(streampca.fit(path, n_components=30, memory=budget))
    seconds.append(time.perf_counter() - began)
whole = models[-1].components.reshape(30, -1)
for budget, model, took in zip(budgets, models, seconds, strict=True):
    own = model.components.reshape(30, -1)
    away = np.linalg.norm(own - own @ whole.T @ whole, 2)
    print(f"{budget:>8}: {model.provenance['plan']['method']}, {took:.1f} s, {away:.0e} from the larger budget")

# %%
# The components do not tell by which budget they were found.

figure, panels = plt.subplots(2, 8, figsize=(10, 2.9), layout="constrained")
for line, budget, model in zip(panels, budgets, models, strict=True):
    for ax, component in zip(line, model.components, strict=False):
        ax.imshow(component, cmap="RdBu_r")
        ax.set(xticks=[], yticks=[])
    line[0].set_title(f"within {budget}", loc="left", fontsize=10)
plt.show()
