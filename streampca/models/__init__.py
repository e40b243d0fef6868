"""Models, which a fit returns: they project, reconstruct, save, load, describe and show themselves.

`pca` is the class that users hold, `store` its format in Zarr, `accuracy` how far its numbers can be trusted, and
`transform` how it is applied to collections of any size.
"""
