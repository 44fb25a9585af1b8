"""Vector stores: as their owners see them (`stores.py`, `files.py`, `batches.py`), and as their ingestion does
(`ingestion.py`)."""
