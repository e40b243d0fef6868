r"""
Pixels that depend on the digit
===============================

The covariance of a pixel with the number that a digit stands for says little: 3 and 8 share their ink, not their value.
HSIC of the pixel with the *class* asks how much the ink there tells of the digit, whatever the order of the digits.
"""

# %%
# The digits of scikit-learn have 8 x 8 pixels of 0 to 16. A Gaussian kernel compares the ink of two images at one
# pixel, and the delta kernel compares their classes.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import streampca

digits = load_digits()
images, labels = digits.images[:600], digits.target[:600]
gamma = 1 / (2 * 4**2)  # a difference of 4 in ink is a typical one
dependence, covariance = np.zeros((8, 8)), np.zeros((8, 8))
for place in np.ndindex(8, 8):
    ink = images[:, *place, None]
    found = streampca.hsic(ink, target=labels, gamma=gamma, permutations=0)
    dependence[place] = found.unbiased
    covariance[place] = np.cov(ink[:, 0], labels)[0, 1] ** 2

# %%
# A permutation test shows which values are due to chance: the first two of these pixels are constant, so any other
# order of the labels gives as large a value.

p_values = [
    streampca.hsic(images[:, *place, None], target=labels, gamma=gamma, permutations=99).p_value
    for place in ((0, 0), (4, 0), (2, 2))
]
print("p-values of three pixels:", *(f"{value:.2f}" for value in p_values))

figure, axes = plt.subplots(1, 3, figsize=(9.5, 3.4), layout="constrained")
panels = {
    "variance of the ink": images.var(axis=0),
    "squared covariance\nwith the number": covariance,
    "HSIC with the class": dependence,
}
for ax, (title, values) in zip(axes, panels.items(), strict=True):
    shown = ax.imshow(values, cmap="viridis", vmin=0)
    ax.set_title(title, fontsize=11)
    ax.set_axis_off()
    figure.colorbar(shown, ax=ax, shrink=0.75)
plt.show()
