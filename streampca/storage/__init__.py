"""Storage of results: arrays to and from Zarr, ``.npy``, ``.tif``, ``.csv`` and ``.parquet``.

An output is complete or visibly not: `outputs` stages, checks and replaces it, `writers` has one class a format,
`components` holds components that are larger than memory, `locks` keeps a second process out, `free_space` refuses
what does not fit the disk, and `integrity` verifies what is read.
"""
