"""Image files, one sample a file: found, kept in a table, decoded, and left out where they are bad.

`files` finds them and `listing` keeps their names and states, as few bytes a file as can be; `imagefile` decodes one,
by Pillow (`bitmap`), as Netpbm (`pnm`), TIFF or FITS, behind the guards of `picture`; `census` tells their kinds, and
`mixed` is the collection where these differ in size.
"""
