r"""
Denoising: which k is best?
===========================

Noise is spread evenly over all directions, what pictures have in common lies in a few. So the first components hold
mostly picture and the last mostly noise, and reconstructing noisy pictures from the first k takes noise away: too few
lose detail, too many bring the noise back. In between lies the best k.

With a path to the Frey faces (1965 frames of one face, of 28 x 20 pixels) this is the classical example; without it,
digits that come with scikit-learn stand in::

    python docs/gallery/denoise_faces.py path/to/frey_faces.npy
"""

# %%
# Pictures, and the same with noise whose deviation is a tenth of the range.

import sys

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import streampca

clean = np.load(sys.argv[1]) if len(sys.argv) > 1 else load_digits().images
clean = clean.astype(np.float32)
peak = clean.max()
noisy = clean + np.random.default_rng(0).normal(0, peak / 10, clean.shape).astype(np.float32)

# %%
# The components are learnt from the noisy pictures: nobody has others. One pass compares the reconstructions from every
# number of components with the clean pictures. The peak signal-to-noise ratio (PSNR) says how near they are, in dB.

most = min(150, clean[0].size)
model = streampca.fit(noisy, n_components=most)
figures = model.compression(noisy, against=clean, peak=peak)
best = figures.best
print(f"noisy {figures.given_psnr:.2f} dB; best with {best} components, {figures.psnr.max():.2f} dB")

# %%
# The peak lies in between, and above the noisy input. Beside it, the bytes that each k takes.

figure = plt.figure(figsize=(7, 4.2), layout="constrained")
streampca.plot.compression(figures, figure.subplots())

# %%
# The same pictures: clean, noisy, and from too few, the best number of, and too many components.

shown = np.linspace(0, len(clean) - 1, 8).astype(int)
rows = {"clean": clean[shown], "noisy": noisy[shown]}
rows |= {f"k = {k}": model.reconstruct(noisy[shown], k) for k in (max(1, best // 4), best, most)}
aspect = clean.shape[1] / clean.shape[2]
figure, axes = plt.subplots(len(rows), 8, figsize=(7, 0.85 * aspect * len(rows)), layout="constrained")
for (name, pictures), line in zip(rows.items(), axes, strict=True):
    for ax, picture in zip(line, pictures, strict=True):
        ax.imshow(picture, cmap="gray", vmin=0, vmax=peak)
        ax.set(xticks=[], yticks=[])
    line[0].set_ylabel(name)
plt.show()
# sphinx_gallery_thumbnail_number = 2
