r"""
What the components of threes mean
==================================

What a component *means* shows in images from low to high scores. Samples are drawn by their first two scores, with the
images nearest to a grid of quantiles in the same arrangement: as in figure 14.23 of *The Elements of Statistical
Learning*, whose 658 handwritten threes have longer and longer tails along one axis, thicker and thicker strokes along
the other.

With a path to these digits, an ``.npz`` file of images and labels, this is that figure; without it, the threes that
come with scikit-learn stand in::

    python docs/gallery/threes.py path/to/zip_train.npz
"""

# %%
# Only the threes, by their labels.

import sys

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import streampca

if len(sys.argv) > 1:
    digits = np.load(sys.argv[1])
    images, labels = digits["images"], digits["labels"]
else:
    images, labels = load_digits().images, load_digits().target
threes = streampca.open_collection(images, labels=labels, where="label=3")
model = streampca.fit(threes, n_components=50)
for k in (2, 12, 50):
    share = model.explained_variance_ratio[:k].sum()
    print(f"{k} components hold {share:.0%} of the variance of {model.n_samples} threes")

# %%
# The samples by their first two scores, and those nearest to the crossings of 5, 25, 50, 75 and 95 %.

pictures = images[labels == 3]
scores = model.transform(pictures)
figure = plt.figure(figsize=(11.5, 5.5), layout="constrained")
streampca.plot.quantiles(model, scores, pictures, figure=figure)

# %%
# The same without samples: the mean, and two deviations to either side along each component.

figure = plt.figure(figsize=(6, 2.8), layout="constrained")
streampca.plot.walks(model, count=2, figure=figure)
plt.show()
