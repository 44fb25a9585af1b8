"""One repository for each aggregate: the only places where SQL is written.

A function that touches owned objects takes the `Owner` (or the organisation), and finds nothing of another owner's: it
raises `NotFoundError` where this one has no object of that id, and where a cursor's object is not in the list. One that
stores for clients raises `StorageFullError`. All may raise `StoreAwayError`: the database does not answer.
"""
