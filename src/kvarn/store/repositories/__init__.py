"""One repository for each aggregate: the only places where SQL is written.

Every method that touches what somebody owns takes the `Owner` (or the organisation), and finds nothing of anybody
else's. All may raise `StoreAwayError`: the database does not answer.
"""
