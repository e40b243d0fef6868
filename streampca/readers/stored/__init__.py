"""N-d arrays in storage, and samples of them: what the readers of formats share.

A format says what it holds as a `StoredArray` (`array.py`): shape, dtype, chunks, and one method that fills a box of a
buffer. `ArrayCollection` makes samples of it: `axes` finds which boxes hold which samples and features, `pieces` and
`runs` keep what is decoded at once small, `bytes` and `flat` read what lies in one run of bytes, `cf` unpacks numbers
by the CF conventions, `coordinates` follows the values along the axes, `choosing` names the array that is meant.
"""
