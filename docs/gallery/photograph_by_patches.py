r"""
A photograph by its patches
===========================

A single photograph is a collection too: of the small windows it consists of. Neighbouring pixels are alike, so a few
components hold most of what any window shows. Windows that overlap give every pixel several times, and the mean of
these takes off more noise than each alone.
"""

# %%
# A photograph that comes with scikit-learn, with noise added; all its windows of 8 x 8 pixels, two pixels apart.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_sample_image

import streampca

clean = load_sample_image("china.jpg")[:400, 200:600].astype(np.float32).mean(axis=2)
noisy = clean + np.random.default_rng(0).normal(0, 25, clean.shape).astype(np.float32)
patches = streampca.open_collection(noisy, patches={"size": 8, "step": 2})
model = streampca.fit(patches, n_components=32)
print(patches)

# %%
# What all windows have in common, from flat over slopes to finer and finer waves.

figure = plt.figure(figsize=(8, 4.4), layout="constrained")
streampca.plot.mean_and_components(model, count=9, figure=figure)

# %%
# The picture put back from the windows as so many components make them.


def again(k):
    """Return the picture from k components of each window."""
    return streampca.from_patches(model.reconstruct(patches, k), noisy.shape, size=8, step=2)


def psnr(picture):
    """Ratio of the largest value to the error, in dB: higher is better."""
    return 10 * np.log10(255**2 / np.mean((picture - clean) ** 2))


ladder = [1, 2, 4, 6, 8, 12, 16, 24, 32]
found = [psnr(again(k)) for k in ladder]
best = ladder[int(np.argmax(found))]
for k, value in zip(ladder, found, strict=True):
    print(f"{k:3d} components: {value:.2f} dB")

# %%
# Few components blur, many bring the noise back.

figure, axes = plt.subplots(2, 2, figsize=(8, 8.5), layout="constrained")
shown = {"photograph": clean, "with noise": noisy}
shown |= {f"{k} components": again(k) for k in (2, best)}
for (name, picture), ax in zip(shown.items(), axes.flat, strict=True):
    ax.imshow(picture, cmap="gray", vmin=0, vmax=255)
    ax.set_title(name if picture is clean else f"{name}: {psnr(picture):.1f} dB")
    ax.set_axis_off()
plt.show()
# sphinx_gallery_thumbnail_number = 2
