"""One suite of the promises that every place makes: `test_promises.py`, played on the grounds of `grounds.py`.

A row is a sentence and one function; what differs from place to place is in its ground. `toy/` is a place of the tests: what
passes the whole suite there is all that the contract asks for.
"""
