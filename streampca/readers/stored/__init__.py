"""N-d arrays in storage and samples of them, shared by the readers of formats.

A format describes its array as a `StoredArray` (`array.py`): shape, dtype, chunks, and one method that fills a box of a
buffer. `ArrayCollection` makes samples of it. `layout` assigns axes to samples, and maps samples and features to
parts of the array, `files` and `flat` read arrays stored in one run of bytes, `cf` unpacks numbers by the CF
conventions, `select_array` finds the array that a key names.
"""
