"""Models, the results of fits: projection, reconstruction, saving, loading, describing and showing.

`pca` has the class that `fit` returns by default, `store` the format in Zarr, `accuracy` the trust in the numbers, and
`transform` the application to collections of any size.
"""
