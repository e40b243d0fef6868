"""Graphs of nearest neighbours, and the embeddings that are computed on them.

Everything here works on plain arrays: scores of samples (n, d), usually along principal components, and the graph of
their neighbours. Each method is a module; `eigensolvers` solves its eigenproblems, `planning` plans its memory, and
`fitting` reads, stores and resumes.
"""
