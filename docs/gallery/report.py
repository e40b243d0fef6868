r"""
Unusual images
==============

An image can be unusual in two ways: its scores lie far from the others' (Hotelling's T²), or it is not made of the
components at all (the squared prediction error). Both are part of every report, which this writes to the path it is
given::

    python docs/gallery/report.py report.html
"""

# %%
# Handwritten digits that come with scikit-learn, two of them spoilt: one exposed twice, one that is no digit.

import sys

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import streampca

images, labels = load_digits().images, load_digits().target
images[100] *= 2
images[300] = np.indices((8, 8)).sum(axis=0) % 2 * 16
model = streampca.fit(images, n_components=20)

# %%
# The report of all this is one file, `like this one <../report.html>`__.

if len(sys.argv) > 1:
    streampca.write_report(model, sys.argv[1], collection=images, labels=labels, overwrite=True)

# %%
# The digit exposed twice is made of strokes like any other: it only lies further out. The other is far from anything
# that components make. Beside these two, what is next by each measure.

t2, spe = model.hotelling_t2(images), model.reconstruction_error(images)
strangest = np.array([*np.argsort(t2)[:-3:-1], *np.argsort(spe)[:-3:-1]])
figure = plt.figure(figsize=(7, 5), layout="constrained")
streampca.plot.outliers(model, t2, spe, marked=strangest, ax=figure.subplots())

# %%
# What the components make of them. The last has a stroke in a corner where few digits have one.

figure = plt.figure(figsize=(8, 3.6), layout="constrained")
numbers = [f"number {row}" for row in strangest]
odd, errors = images[strangest], spe[strangest]
streampca.plot.unusual(model, odd, t2[strangest], errors, names=numbers, figure=figure)
plt.show()
# sphinx_gallery_thumbnail_number = 2
