"""Image files with one sample each: search, listing in a table, decoding, and leaving out of bad files.

`find` searches for them and `listing` holds their names and states in few bytes per file; `decode` decodes one by
Pillow (`pillow`), libpng (`png`), or as Netpbm (`pnm`), JPEG 2000, TIFF or FITS, behind the guards of `opened_image`;
`census` is the table of their kinds and of the reasons why some are bad.
"""
