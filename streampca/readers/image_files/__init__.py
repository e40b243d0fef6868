"""Image files, one sample a file: found, listed in a table, decoded, and left out where they are bad.

`find` finds them and `listing` holds their names and states, as few bytes a file as can be; `decode` decodes one, by
Pillow (`pillow`), libpng (`png`), as Netpbm (`pnm`), JPEG 2000, TIFF or FITS, behind the guards of `opened_image`;
`census` counts their kinds, and `mixed_sizes` is the collection where these differ in size.
"""
