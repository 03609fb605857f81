"""One engine run, from its manifest to a record or a refusal."""
