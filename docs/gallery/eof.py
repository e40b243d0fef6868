r"""
Patterns of a sea's surface
===========================

Fields of latitude, longitude and time are images too. Their components are called empirical orthogonal functions, and
the scores are time series. The field here is made up: an oscillation in the east every four years, a wave that travels,
and noise.
"""

# %%
# A field with coordinates, and land where nothing is known.

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr

import streampca

lat, lon = np.arange(-40.0, 41, 4), np.arange(120.0, 291, 5)
time = np.arange("1990-01", "2020-01", dtype="datetime64[M]").astype("datetime64[ns]")
years = np.arange(len(time)) / 12
east = np.exp(-((lat[:, None] / 12) ** 2) - ((lon - 250) / 45) ** 2)
swing = 1.5 * np.sin(2 * np.pi * years / 4) + 0.5 * np.sin(2 * np.pi * years / 2.3)
phase = np.radians(4 * lon) - 2 * np.pi * years[:, None, None] / 5
wave = 0.9 * np.cos(phase) * np.exp(-(((lat[:, None] - 25) / 10) ** 2))
noise = np.random.default_rng(0).normal(0, 0.3, wave.shape)
land = (lon[None, :] > 275 - lat[:, None] / 4) | ((lon[None, :] < 145) & (lat[:, None] < -12))
sst = xr.DataArray(
    np.where(land, np.nan, swing[:, None, None] * east + wave + noise),
    coords={"time": time, "lat": lat, "lon": lon},
    dims=("time", "lat", "lon"),
    attrs={"units": "K", "long_name": "sea-surface temperature anomaly"},
)

# %%
# Land is left out, and points count by the area they stand for. What comes out has the coordinates of what went in.

preparation = streampca.Preparation(mask="valid", scale="area")
model = streampca.fit(sst, n_components=4, preparation=preparation)
patterns, series = model.to_xarray(), model.transform(sst)
print(patterns)

# %%
# The oscillation is one pattern with one time series. The wave is two, a quarter of a wave apart in place and in time.

figure = plt.figure(figsize=(10, 7), layout="constrained")
axes = figure.subplots(3, 2, width_ratios=(3, 4))
for number, (left, right) in enumerate(axes, 1):
    field = patterns["components"].sel(component=number)
    largest = float(abs(field).max())
    place, scale = (field["lon"], field["lat"]), {"vmin": -largest, "vmax": largest}
    colours = left.pcolormesh(*place, field, cmap="RdBu_r", **scale)
    left.set_facecolor("0.8")
    share = float(patterns["explained_variance_ratio"].sel(component=number))
    left.set(ylabel="latitude", title=f"component {number}: {share:.0%} of the variance")
    figure.colorbar(colours, ax=left, label="loading")
    right.plot(series["time"], series.sel(component=number), linewidth=1)
    right.axhline(0, color="0.7", linewidth=0.8)
    right.set_ylabel(f"score {number} (K)")
left.set_xlabel("longitude")
right.set_xlabel("time")
plt.show()
