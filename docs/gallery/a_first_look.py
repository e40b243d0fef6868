r"""
Images, components, and back
============================

What principal components of images are, in one picture: images that are alike lie side by side, components are images,
and a few of them rebuild a sample.
"""

# %%
# 1797 handwritten digits, and 32 components.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import streampca

digits, labels = load_digits().images, load_digits().target
model = streampca.fit(digits, n_components=32, memory="256 MiB")
scores = model.transform(digits)

# %%
# Each digit stands where its first two scores put it, coloured by what was meant. On the right the mean and the
# components that vary most, and one digit rebuilt from more and more of them.

figure = plt.figure(figsize=(11, 5), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=(1.15, 1))
ax, colours = left.add_subplot(), plt.get_cmap("tab10").colors
taken: list[np.ndarray] = []
for image, place, label in zip(digits, scores[:, :2], labels, strict=True):
    if taken and min(np.abs(np.subtract(taken, place)).max(axis=1)) < 2.4:
        continue
    taken.append(place)
    ink = np.dstack([np.broadcast_to(colours[label], (8, 8, 3)), image / 16])
    ax.imshow(ink, extent=(place[0] - 1.2, place[0] + 1.2, place[1] - 1.2, place[1] + 1.2), interpolation="bilinear")
ax.set(xlim=(-34, 34), ylim=(-30, 32), aspect="equal", xlabel="score 1", ylabel="score 2", title="digits by two scores")

rows = right.subplots(3, 5)
share = model.explained_variance_ratio
shown = {"mean": model.mean} | {
    f"{number}: {share[number - 1]:.0%}": model.components[number - 1] for number in range(1, 10)
}
for panel, (name, image) in zip(rows[:2].flat, shown.items(), strict=True):
    most = np.abs(image).max()
    how = {"cmap": "gray_r"} if name == "mean" else {"cmap": "RdBu_r", "vmin": -most, "vmax": most}
    panel.imshow(image, interpolation="bicubic", **how)
    panel.set(title=name, xticks=[], yticks=[])
sample = digits[[33]]
for panel, k in zip(rows[2], (1, 4, 12, 32, None), strict=True):
    image = sample[0] if k is None else model.reconstruct(sample, n_components=k)[0]
    panel.imshow(image, cmap="gray_r", vmin=0, vmax=16, interpolation="bicubic")
    panel.set(title="sample" if k is None else f"from {k}", xticks=[], yticks=[])
right.suptitle("the mean, nine components, and a digit rebuilt")
plt.show()
