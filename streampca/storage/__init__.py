"""Storage of results: arrays to and from Zarr, ``.npy``, ``.tif``, ``.csv`` and ``.parquet``.

An output is complete or visibly not: `outputs` stages, checks and replaces it, `writers` has a class for each format,
`components` holds components that are larger than memory, `locks` keeps other processes out, `free_space` refuses
outputs that do not fit the disk, and `integrity` verifies what is read.
"""
