"""
Following a curved surface
==========================

Principal components are flat. Points of a roll that lie on neighbouring sheets are far apart along it, and fall
together in them; along the graph of nearest neighbours, they stay apart. The same graph tells clusters of any shape.
"""

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import make_circles, make_moons, make_swiss_roll

import streampca

roll, along = make_swiss_roll(1200, random_state=0)
isomap = streampca.Isomap(n_neighbors=10).fit(roll)
models = {
    "principal components": streampca.PCA(2).fit_transform(roll),
    "Isomap": isomap.embedding_,
    "Laplacian eigenmaps": streampca.SpectralEmbedding(n_neighbors=10).fit_transform(roll),
    "locally linear": streampca.LocallyLinearEmbedding(n_neighbors=12).fit_transform(roll),
}
figure, axes = plt.subplots(1, 4, figsize=(12, 3.2), layout="constrained")
for (name, points), ax in zip(models.items(), axes, strict=True):
    ax.scatter(*np.asarray(points).T, c=along, s=4)
    ax.set_title(name)
    ax.set_xticks([])
    ax.set_yticks([])

# %%
# How many dimensions the roll takes: two leave nothing of the distances along it.

figure, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
streampca.plot.residual_variance(isomap.model_, ax)

# %%
# Two half moons and two rings, by k-means of the points and by spectral clustering.

shapes = {
    "moons": make_moons(600, noise=0.08, random_state=0)[0],
    "rings": make_circles(600, noise=0.05, factor=0.5, random_state=0)[0],
}
figure, axes = plt.subplots(2, 2, figsize=(7, 6), layout="constrained")
for row, (name, points) in zip(axes, shapes.items(), strict=True):
    means = KMeans(2, n_init=10, random_state=0).fit_predict(points)
    spectral = streampca.SpectralClustering(2, n_neighbors=30).fit(points)
    cuts = f"spectral clustering: normalised cut {spectral.cuts_['normalized_cut']:.3f}"
    for ax, labels, title in zip(row, (means, spectral.labels_), ("k-means", cuts), strict=True):
        ax.scatter(*points.T, c=labels, s=6, cmap="coolwarm")
        ax.set_title(f"{name}, {title}", fontsize=9)
        ax.set_xticks([])
        ax.set_yticks([])
