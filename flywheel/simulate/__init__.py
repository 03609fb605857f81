"""The decision rule against boxes whose truth is known: how often it errs, and what it finds.

Everything that decides is the loop's own code (`band`, `screen`, `decide`, `campaign`); only the
loads are invented. The rules of other loops are simulated beside it on the same boxes.
"""
