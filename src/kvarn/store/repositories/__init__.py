"""One repository for each aggregate: the only places where SQL is written.

A function that touches what somebody owns takes the `Owner` (or the organisation), and finds nothing of anybody else's:
it raises `NotFoundError` where they have no object of that id, and where a cursor's object is not in the list. One that
stores for clients raises `StorageFullError`. All may raise `StoreAwayError`: the database does not answer.
"""
