"""The append-only ledger: the only place that knows SQLAlchemy."""
