"""Collections made of collections: some samples (`chosen`), windows of images (`patches`), by labels (`columns`).

`compose` applies them to the collection of a format, in the order that `open_collection` documents.
"""
