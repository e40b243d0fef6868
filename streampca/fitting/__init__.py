"""Fit models: open a collection, plan, run a method, build the model; and merging models of parts.

`fit` tells the story in a page; `plan` settles everything that is known before data are read; `methods` holds one
module per method; `identity` decides whether an unfinished fit is the same work.
"""
