r"""
Axes that know the labels
=========================

Two principal components of handwritten digits show what varies most, whatever the digits are; two supervised ones what
depends most on the labels, and two discriminants what tells classes apart. Axes are learned from half of the digits,
and shown with the other half. Five nearest neighbours say how much of the classes is left in two numbers.

With a path to an ``.npz`` file of images and labels it is drawn of these; without it, of scikit-learn's digits::

    python docs/gallery/supervised.py path/to/zip_train.npz
"""

# %%
# Half to learn from, half to show.

import sys

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier

import streampca

if len(sys.argv) > 1:
    digits = np.load(sys.argv[1])
    images, labels = digits["images"], digits["labels"]
else:
    images, labels = load_digits().images, load_digits().target
rows = images.reshape(len(images), -1)
train, test, train_labels, test_labels = train_test_split(rows, labels, test_size=0.5, random_state=0, stratify=labels)

# %%
# The discriminants need some shrinkage, as a few pixels are black in every digit.

axes = {
    "principal components": streampca.StreamingPCA(2).fit(train),
    "supervised components": streampca.SupervisedPCA(2).fit(train, train_labels),
    "discriminants": streampca.FisherDiscriminant(2, shrinkage=0.01).fit(train, train_labels),
}
figure, panels = plt.subplots(1, 3, figsize=(11.5, 4), layout="constrained")
for panel, (name, fitted) in zip(panels, axes.items(), strict=True):
    scores = fitted.transform(test)
    share = KNeighborsClassifier(5).fit(fitted.transform(train), train_labels).score(scores, test_labels)
    drawn = panel.scatter(*scores.T, c=test_labels, cmap="tab10", s=6, alpha=0.7)
    panel.set(title=f"{name}: {share:.1%}", xticks=[], yticks=[])
figure.colorbar(drawn, ax=panels, label="digit", ticks=range(10))
plt.show()
