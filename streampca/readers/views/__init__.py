"""Collections made of collections: some samples (`chosen`), windows of images (`patches`), by labels (`columns`).

`compose` puts them on top of what a format opened, in the order that `open_collection` documents.
"""
