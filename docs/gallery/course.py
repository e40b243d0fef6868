r"""
Figures of the course
=====================

Figures of the steps of `the course <../course.html>`__ that no other page of the gallery draws. Data are digits, a
photograph, and points on a roll.
"""

# %%
# Points in the plane, and their variance along a direction by its angle. What a direction does not hold is the squared
# distance from it: the largest variance and the smallest error are at the same angle.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits, load_sample_image

import streampca

random = np.random.default_rng(0)
points = random.normal(size=(150, 2)) @ [[2, 1], [0, 0.6]]
axis = streampca.PCA(1).fit(points)
near = axis.inverse_transform(axis.transform(points))
angles = np.radians(np.arange(181))
along = points @ [np.cos(angles), np.sin(angles)]
figure, panels = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
panels[0].plot(*np.stack([points, near]).transpose(2, 0, 1), color="lightgrey", linewidth=0.8)
panels[0].plot(*near.T, "k.", *points.T, "C0.", markersize=4)
panels[0].set(aspect="equal", title="points, and what one component keeps")
panels[1].plot(np.degrees(angles), along.var(axis=0, ddof=1), label="variance along")
panels[1].plot(np.degrees(angles), points.var(axis=0, ddof=1).sum() - along.var(axis=0, ddof=1), label="squared error")
panels[1].axvline(np.degrees(np.arctan(np.divide(*axis.components_[0, ::-1]))), color="k", linewidth=0.8)
panels[1].set(xlabel="angle of the direction", title="the component's angle is the line")
panels[1].legend()

# %%
# Shares of the variance of digits, from which the number of components is chosen.

digits, labels = load_digits().images, load_digits().target
model = streampca.fit(digits, n_components=30)
figure, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
streampca.plot.scree(model, ax)

# %%
# Components of images are images.

streampca.plot.mean_and_components(model, count=9, figure=plt.figure(figsize=(8, 4.2), layout="constrained"))

# %%
# Twenty digits: the 64 x 64 covariance matrix and the 20 x 20 matrix of inner products have the same eigenvalues, of
# which 19 are not 0.

few = digits[:20]
figure, ax = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
for method, mark in (("covariance", "o"), ("dual", "x")):
    variances = streampca.fit(few, streampca.PCA(19, method=method)).explained_variance
    ax.semilogy(np.arange(1, 20), variances, mark, label=method)
ax.set(xlabel="component", ylabel="variance", xticks=range(1, 20, 3))
ax.legend()

# %%
# Threes and eights along the first principal component, and along Fisher's discriminant.

two = np.isin(labels, (3, 8))
rows, classes = digits[two].reshape(two.sum(), -1), labels[two]
figure, panels = plt.subplots(1, 2, figsize=(8, 2.8), layout="constrained")
axes = {
    "principal component": streampca.PCA(1),
    "discriminant": streampca.FisherDiscriminant(1, shrinkage=0.1),
}
for panel, (name, estimator) in zip(panels, axes.items(), strict=True):
    scores = estimator.fit(rows[::2], classes[::2]).transform(rows[1::2])[:, 0]
    panel.hist([scores[classes[1::2] == digit] for digit in (3, 8)], bins=25, label=["3", "8"])
    panel.set(title=f"{name}, other half", yticks=[])
panels[0].legend()

# %%
# A roll of 240 points, and its coordinates by locally linear embedding.

random = np.random.default_rng(0)
length, height = np.mgrid[0:60:2, 0:16:2].reshape(2, -1) + random.uniform(-0.5, 0.5, (2, 240))
turn = np.sqrt(20 + 2 * length)
roll = np.column_stack([turn * np.cos(turn), height, turn * np.sin(turn)])


def rolls(figure, values):
    """Draw the roll, coloured by values, in the first panels of three."""
    for at, (name, colours) in enumerate(values.items(), 1):
        ax = figure.add_subplot(1, 3, at, projection="3d", elev=8, azim=-80)
        ax.scatter(*roll.T, c=colours, s=8)
        ax.set(title=name, xticks=[], yticks=[], zticks=[])


figure = plt.figure(figsize=(9.5, 3.2), layout="constrained")
rolls(figure, {"along the roll": length, "across": height})
linear = streampca.LocallyLinearEmbedding(n_neighbors=8).fit_transform(roll)
ax = figure.add_subplot(1, 3, 3)
ax.scatter(*linear.T, c=length, s=8)
ax.set(title="locally linear embedding", xticks=[], yticks=[])

# %%
# The first two eigenvectors of the Laplacian of its graph, on the roll and against each other. The second goes down and
# up again along the roll: on one so long and narrow that changes less than anything across it.

smooth = streampca.SpectralEmbedding(n_neighbors=8).fit_transform(roll)
figure = plt.figure(figsize=(9.5, 3.2), layout="constrained")
rolls(figure, {"first eigenvector": smooth[:, 0], "second": smooth[:, 1]})
ax = figure.add_subplot(1, 3, 3)
ax.scatter(*smooth.T, c=length, s=8)
ax.set(title="Laplacian eigenmaps", xticks=[], yticks=[])

# %%
# The same roll, pulled flat: its edges keep their lengths.

flat = streampca.MaximumVarianceUnfolding(n_neighbors=6).fit(roll)
figure, ax = plt.subplots(figsize=(8, 2.6), layout="constrained")
edges = streampca.neighbors(roll, n_neighbors=6).indices
for other in edges.T:
    ax.plot(
        *np.stack([flat.embedding_, flat.embedding_[other]]).transpose(2, 0, 1),
        color="lightgrey",
        linewidth=0.6,
        zorder=0,
    )
ax.scatter(*flat.embedding_.T, c=length, s=12)
ax.set(aspect="equal", xticks=[], yticks=[], title="maximum variance unfolding, and the edges of the graph")

# %%
# Views of a photograph through a window that moves to the right by 24 steps, and back by 12. By one principal component
# the steps are uneven; with the actions known, all are equal.

actions = np.repeat(["right", "left"], [24, 12])
places = 200 + np.append(0, np.cumsum(np.where(actions == "right", 1, -1)))
photograph = load_sample_image("flower.jpg").mean(axis=2)
views = np.stack([photograph[150:214, place : place + 64] for place in places])
moved = streampca.fit(views, streampca.ActionRespectingEmbedding(1), target=actions)
found = {
    "one principal component": streampca.fit(views, n_components=1).transform(views),
    "with actions": moved.embedding,
}
figure, panels = plt.subplots(1, 3, figsize=(9.5, 2.8), layout="constrained")
panels[0].imshow(np.hstack([views[0], np.full((64, 6), 255), views[24]]), cmap="gray")
panels[0].set(title="first view, and that after 24 steps", xticks=[], yticks=[])
for panel, (name, line) in zip(panels[1:], found.items(), strict=True):
    panel.plot(line[:, 0], ".-")
    panel.set(title=name, xlabel="time", yticks=[])
plt.show()
