"""Image files, one sample a file: found, listed in a table, decoded, and left out where they are bad.

`find` finds them and `listing` holds their names and states, as few bytes a file as can be; `decode` decodes one, by
Pillow (`pillow`), libpng (`png`), as Netpbm (`pnm`), JPEG 2000, TIFF or FITS, behind the guards of `opened_image`;
`census` is the table of their kinds and of what is wrong with any.
"""
