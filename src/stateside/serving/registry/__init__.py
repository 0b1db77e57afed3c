"""Place: which server holds which share of the keys.

`announcement` is what a server tells of itself, `announcer` tells it, `servers` hears it, `location` says who has what.
`location` and `announcement` do no I/O: clients reckon with them too.
"""
