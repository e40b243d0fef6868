r"""
Axes that know the labels
=========================

Two principal components of handwritten digits show the most variance, whatever the digits are; two supervised
components the most dependence on the labels, and two discriminants the best separation of classes. Axes are learned
from half of the digits and shown with the other half. The accuracy of five nearest neighbours measures how much two
scores tell about the class.
"""

# %%
# Axes are learned from one half, and scores of the other half are shown.

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier

import streampca

rows, labels = load_digits(return_X_y=True)
train, test, train_labels, test_labels = train_test_split(rows, labels, test_size=0.5, random_state=0, stratify=labels)

# %%
# The discriminants need some shrinkage, as a few pixels are black in every digit.

axes = {
    "principal components": streampca.PCA(2).fit(train),
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
