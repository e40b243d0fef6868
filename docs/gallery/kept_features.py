r"""
Pixels that tell two digits apart
=================================

Supervised principal components keep the pixels whose correlation with a number reaches a threshold, and regress the
number on the leading components of these alone. Here the number is the digit, 2 or 3. Cross-validation compares numbers
of pixels: with few, something is missed; with all, the components are the principal ones, which show the largest
variance, whatever the digits are.
"""

# %%
# Half of the twos and threes are fitted.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import streampca

digits = load_digits()
some = np.isin(digits.target, (2, 3))
images, numbers = digits.images[some], digits.target[some]
model = streampca.fit(images[::2], streampca.SupervisedPrincipalComponents(2), target=numbers[::2])
print(model.about_axes)

# %%
# The other half is predicted.

found = model.predict(images[1::2])
right = np.mean((found > 2.5) == (numbers[1::2] == 3))
figure, panels = plt.subplots(1, 4, figsize=(13, 3.2), layout="constrained")
panels[0].imshow(model.correlation, cmap="RdBu_r", vmin=-1, vmax=1)
rows, columns = np.nonzero(model.kept)
panels[0].plot(columns, rows, "k.", markersize=4)
panels[0].set(title=f"correlation with the digit,\n{model.n_kept} of 64 pixels kept (dots)")
panels[1].imshow(model.components[0], cmap="RdBu_r", vmin=-0.6, vmax=0.6)
panels[1].set(title="first component")
panels[2].plot(model.tried_features, model.cv_error, "o-")
panels[2].set(title="error of left-out samples,\nover that of the mean", xlabel="pixels kept")
panels[3].hist([found[numbers[1::2] == digit] for digit in (2, 3)], bins=20, label=["2", "3"])
panels[3].set(title=f"predictions of the other half,\n{right:.1%} right", xlabel="digit")
panels[3].legend()
for panel in panels[:2]:
    panel.set(xticks=[], yticks=[])
plt.show()
