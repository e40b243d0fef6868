"""Graphs of nearest neighbours, and the embeddings that are computed on them.

Everything here takes plain arrays: scores of samples (n, d), which a PCA made of images, and the graph of their
neighbours. Each method is a module; its eigenproblems are solved by `eigensolvers`, its memory is planned by
`planning`, and `fitting` reads, stores and resumes around it.
"""
