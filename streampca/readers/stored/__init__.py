"""N-d arrays in storage, and samples of them: what the readers of formats share.

A format describes its array as a `StoredArray` (`array.py`): shape, dtype, chunks, and one method that fills a box of a
buffer. `ArrayCollection` makes samples of it: `layout` says which axes make one sample, `array_boxes` which parts of
the array hold which samples and features, `files` and `flat` read what lies in one run of bytes, `cf` unpacks numbers
by the CF conventions, `select_array` finds the array that a key names.
"""
