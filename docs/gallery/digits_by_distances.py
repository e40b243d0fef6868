"""
Digits by their distances
=========================

Classical scaling needs distances alone. Here 600 handwritten digits are laid out by two metrics: Euclidean distances,
which give their principal components, and sums of absolute differences, which are not the distances of points in any
number of dimensions. The negative eigenvalues measure how far these are from Euclidean.
"""

# %%
import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.metrics import pairwise_distances

import streampca

digits = load_digits()
pixels, labels = digits.data[:600], digits.target[:600]
models = {
    metric: streampca.fit(pairwise_distances(pixels, metric=metric), streampca.ClassicalMDS(4, metric="precomputed"))
    for metric in ("euclidean", "manhattan")
}

# %%
# The digits along the first two axes of each.

figure, axes = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
for (metric, model), ax in zip(models.items(), axes, strict=True):
    streampca.plot.scores(model, model.embedding, labels, ax=ax)
    ax.set_title(f"{metric}: {model.negative_share[0]:.1%} negative")

# %%
# All eigenvalues, over n - 1: those of the sums of absolute differences end below 0.

figure, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
for metric, model in models.items():
    ax.plot(model.eigenvalues / model.eigenvalues[0], label=metric)
ax.axhline(0, color="grey", linewidth=0.8)
ax.set_yscale("symlog", linthresh=1e-4)
ax.set_xlabel("eigenvalue")
ax.set_ylabel("to the largest")
ax.legend()
