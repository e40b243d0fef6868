r"""
A picture by its rows
=====================

One grey picture of 512 x 512 pixels is 512 samples, its rows, of 512 features each. A few components, which are rows
themselves, are mixed into every row. One gives the light from left to right, five the large shapes; with 29 the tiles
of the roof are there, in an eighth of the numbers.
"""

# %%
# The picture is cut from a photograph that comes with scikit-learn.

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_image

import streampca

photograph = Image.fromarray(load_sample_image("china.jpg")).convert("L")
picture = np.asarray(photograph.crop((200, 0, 627, 427)).resize((512, 512)))
model = streampca.fit(picture, n_components=29)

# %%
# Each row is projected on the first k components and back. What has to be kept for that are k scores of each row, k
# components, and the mean row.

ladder = range(1, 30, 4)
figure, axes = plt.subplots(3, 3, figsize=(9, 9.6), layout="constrained")
axes[0, 0].imshow(picture, cmap="gray", vmin=0, vmax=255)
axes[0, 0].set_title("512 x 512 numbers")
for k, ax in zip(ladder, axes.flat[1:], strict=True):
    again = model.reconstruct(picture, k)
    peak_ratio = 10 * np.log10(255**2 / np.mean((again - picture) ** 2))
    numbers = k * (512 + 512) + 512
    ax.imshow(again, cmap="gray", vmin=0, vmax=255)
    share = f"{numbers / picture.size:.1%} of the numbers"
    ax.set_title(f"k = {k}: PSNR {peak_ratio:.1f} dB\n{share}", fontsize=10)
for ax in axes.flat:
    ax.set_axis_off()
plt.show()
